// A site's trial: files are sent in pieces until they have arrived, whatever the network does.

const csrf = document.querySelector("meta[name=csrf]").content;
const trial = document.getElementById("trial");
const { id, piece } = trial.dataset;
const status = document.getElementById("status");
const say = (text) => { status.textContent = text; };
const sleep = (seconds) => new Promise((resolve) => {
  setTimeout(resolve, seconds * 1000);
  addEventListener("online", resolve, { once: true });
});

async function send(method, path, body, isRaw = false) {
  const answer = await fetch(path, {
    method, body: isRaw ? body : JSON.stringify(body),
    headers: { "x-csrf": csrf, "accept": "application/json", "content-type": isRaw ? "application/octet-stream" : "application/json" },
  });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(found.error || `The server answered ${answer.status}.`), { status: answer.status });
  return found;
}

/** Send a file; go on where an earlier try stopped. Only a refusal ends it. */
async function upload(box, file) {
  const bar = box.querySelector("progress"), said = box.querySelector(".said");
  const { part, camera } = box.dataset;
  for (let tries = 0; ; tries++) {
    try {
      let state = await send("POST", `/trials/${id}/uploads`, { part, camera, size: file.size });
      while (!state.is_complete) {
        bar.value = state.received / file.size;
        said.textContent = `${Math.floor(100 * bar.value)}%`;
        const next = file.slice(state.received, state.received + Number(piece));
        state = { ...state, ...await send("PUT", `/uploads/${state.id}/${state.received}`, next, true) };
        tries = 0;
      }
      bar.value = 1;
      said.textContent = "arrived";
      return true;
    } catch (error) {
      if (error.status && error.status < 500) { said.textContent = error.message; return false; }
      const wait = Math.min(20, 1 + tries * 2);
      said.textContent = `${error.status ? error.message : "no connection"}, trying again in ${wait} s`;
      await sleep(wait);
    }
  }
}

let uploading = 0;
for (const box of document.querySelectorAll(".upload")) {
  const input = box.querySelector("input");
  input.onchange = async () => {
    if (!input.files[0]) return;
    input.disabled = true;
    uploading++;
    const isFinal = await upload(box, input.files[0]);
    uploading--;
    input.disabled = isFinal && box.dataset.part !== "photo";
  };
}
addEventListener("beforeunload", (event) => { if (uploading) event.preventDefault(); });

async function step(path, body) {
  try {
    say("Saving…");
    await send("POST", `/trials/${id}/${path}`, body);
    location.reload();
  } catch (error) {
    say(error.status ? error.message : "No connection: nothing is lost, try again.");
    status.focus();
  }
}

const task = document.getElementById("instruction");
if (task) {
  const key = `demerit task ${id}`; // survives a reload
  task.value ||= localStorage.getItem(key) ?? "";
  task.oninput = () => localStorage.setItem(key, task.value);
}
document.getElementById("describe")?.addEventListener("click", () => step("describe", {
  instruction: task.value,
  checklist: [...document.querySelectorAll("input[name=safety]")].map((box) => box.checked),
}));
document.getElementById("reset")?.addEventListener("click", () => step("reset", {}));
document.querySelector("[data-reload]")?.addEventListener("click", () => {
  const main = document.querySelector(".upload[data-camera=left] progress");
  if (uploading) say("Wait until everything has arrived.");
  else if (main.value < 1) say("The video of the main camera has not arrived yet: choose it above.");
  else location.reload();
});

const form = document.getElementById("judgement");
if (form) {
  const key = `demerit judgement ${id}`; // what was typed survives a reload
  const kept = JSON.parse(localStorage.getItem(key) ?? "{}");
  for (const field of form.elements) {
    if (!(field.name in kept)) continue;
    if (field.type === "radio") field.checked = kept[field.name] === field.value; else field.value = kept[field.name];
  }
  form.oninput = () => localStorage.setItem(key, JSON.stringify(Object.fromEntries(new FormData(form))));
  form.onsubmit = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(form)), judgement = { verdict: given.verdict, feedback: given.feedback };
    for (const part of ["first", "second"]) {
      const success = given[`${part}_success`], progress = given[`${part}_progress`];
      if (success) judgement[`${part}_success`] = success === "true";
      if (progress) judgement[`${part}_progress`] = Number(progress) / 100;
    }
    await step("judge", judgement);
    localStorage.removeItem(key);
  };
}
document.body.dataset.ready = "true";
