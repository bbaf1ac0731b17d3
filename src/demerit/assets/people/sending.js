// Sends answers and drafts. An answer keeps its id until the server has it, so sending it again stores it once;
// a page that is closed or offline sends it when it is opened again.

const csrf = document.querySelector("meta[name=csrf]").content;
const WAIT = [1, 2, 5, 10, 20]; // seconds between tries

async function send(method, path, body) {
  const answer = await fetch(path, {
    method, headers: { "content-type": "application/json", "accept": "application/json", "x-csrf": csrf },
    body: JSON.stringify(body),
  });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(found.error || `The server answered ${answer.status}.`), { status: answer.status });
  return found;
}

// By person and episode, not by number: another dataset may be served at this address tomorrow.
const keyOf = ({ key }) => `demerit answer ${key}`;

/** Send an answer until it is stored; `say` tells the person what is going on. Refusals are thrown. */
export async function sendAnswer(facts, body, seconds, say) {
  const sent = { id: crypto.randomUUID(), body, seconds };
  localStorage.setItem(keyOf(facts), JSON.stringify(sent));
  return await sendUntilStored(facts, sent, say);
}

/** Send what an earlier visit to this item could not. */
export async function sendLeftOver(facts, say) {
  const left = localStorage.getItem(keyOf(facts));
  return left ? await sendUntilStored(facts, JSON.parse(left), say) : null;
}

async function sendUntilStored(facts, sent, say) {
  for (let tries = 0; ; tries++) {
    try {
      say("Saving…");
      const answer = await send("POST", `/items/${facts.item}/answer`, sent);
      localStorage.removeItem(keyOf(facts));
      say("Saved.");
      return answer;
    } catch (error) {
      if (error.status && error.status < 500) { localStorage.removeItem(keyOf(facts)); throw error; }
      const wait = WAIT[Math.min(tries, WAIT.length - 1)];
      say(`Not saved yet (${error.status ? error.message : "no connection"}): trying again in ${wait} s. Your answer is kept in this browser.`);
      await new Promise((resolve) => { setTimeout(resolve, wait * 1000); addEventListener("online", resolve, { once: true }); });
    }
  }
}

/** Keep an unfinished answer: at once in this browser, soon on the server. */
export class Draft {
  constructor({ item, key }, say) { this.item = item; this.key = key; this.say = say; this.timer = 0; }

  get #key() { return `demerit draft ${this.key}`; }

  /** What is kept: in this browser if it has something, else what the server sent. */
  read(fromServer) {
    const here = localStorage.getItem(this.#key);
    return here ? JSON.parse(here) : fromServer;
  }

  save(body) {
    localStorage.setItem(this.#key, JSON.stringify(body));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#send(body), 600);
  }

  drop() { clearTimeout(this.timer); localStorage.removeItem(this.#key); }

  async #send(body) {
    try {
      await send("PUT", `/items/${this.item}/draft`, body);
      if (localStorage.getItem(this.#key) === JSON.stringify(body)) localStorage.removeItem(this.#key);
      this.say("Draft saved.");
    } catch (error) {
      this.say(error.status ? error.message : "No connection: your draft is kept in this browser.");
    }
  }
}
