// The page of an item: videos, timeline, keys; what is asked differs by kind.

import { Stage } from "/static/stage.js";
import { Draft, sendAnswer, sendLeftOver } from "/static/sending.js";
import { Timeline } from "/static/timeline.js";

const facts = JSON.parse(document.getElementById("facts").textContent);
const $ = (selector) => document.querySelector(selector);
const $$ = (selector) => [...document.querySelectorAll(selector)];
const status = $("#status");
const say = (text) => { status.textContent = text; };
const started = performance.now();

const stage = new Stage($$("video").map((element) => {
  const { place, camera } = element.dataset;
  return { element, times: facts.episodes[place].cameras[camera].times };
}));
const timeline = new Timeline($("#timeline"), stage.frames, (frame) => stage.show(frame));
const draft = new Draft(facts, say);

// What the person has said so far. Everything on the page is drawn from it.
const empty = { verdict: null, success: null, grade: null, progress: null, kinds: [], note: "", points: [], events: [] };
const given = draft.read(facts.draft) ?? facts.answer ?? {};
let state = { ...empty, ...Object.fromEntries(Object.entries(given).filter(([name]) => name in empty)) };
let isRecording = false;
const past = [];

function change(update, keepInHistory = true) {
  if (keepInHistory) past.push(JSON.stringify(state));
  state = { ...state, ...update };
  draft.save(state);
  draw();
}

function undo() {
  if (!past.length) { say("There is nothing to undo."); return; }
  state = JSON.parse(past.pop());
  draft.save(state);
  draw();
}

function draw() {
  for (const button of $$("[data-set]")) {
    const value = JSON.parse(button.value);
    button.setAttribute("aria-pressed", String(state[button.dataset.set] === value));
  }
  for (const box of $$("input[name=kinds]")) box.checked = state.kinds.includes(box.value);
  const note = $("#note");
  if (note && note !== document.activeElement) note.value = state.note;
  timeline.draw(stage.frame, state.points, state.events);
  drawEvents();
  drawFrame();
}

function drawFrame() {
  $("#frame").textContent = `frame ${stage.frame + 1} of ${stage.frames}`;
  const play = $("#play");
  play.textContent = stage.isPlaying ? "Pause" : "Play";
  $("#speed").textContent = `${stage.speed}×`;
  timeline.draw(stage.frame, state.points, state.events);
}

// Progress and events, on the page "mark"

const slider = $("#progress");

function setPoint(frame, progress) {
  const points = state.points.filter(([at]) => at !== frame);
  return [...points, [frame, Math.round(progress * 100) / 100]].sort((a, b) => a[0] - b[0]);
}

function mark(progress) {
  if (slider) slider.value = String(Math.round(progress * 100));
  change({ points: setPoint(stage.frame, progress) });
  say(`${Math.round(progress * 100)}% at frame ${stage.frame + 1}.`);
}

function record(from, to) {
  // Every frame that was shown gets the slider's value; frames that playing skipped lie in between.
  let points = state.points;
  for (let frame = Math.min(from + 1, to); frame <= to; frame++) {
    points = [...points.filter(([at]) => at !== frame), [frame, Number(slider.value) / 100]];
  }
  change({ points: points.sort((a, b) => a[0] - b[0]) }, false);
}

function toggleRecording() {
  isRecording = !isRecording;
  $("#record").setAttribute("aria-pressed", String(isRecording));
  if (isRecording) { past.push(JSON.stringify(state)); stage.play(); slider.focus(); } else stage.pause();
}

function toggleEvent() {
  const open = state.events.findIndex((event) => event.isOpen);
  if (open < 0) {
    change({ events: [...state.events, { kind: $("#kind").value, first: stage.frame, last: stage.frame, isOpen: true }] });
    say(`It begins at frame ${stage.frame + 1}: press e again where it ends. k names its kind, if you like.`);
  } else {
    const events = state.events.map((event, place) => (place === open ? closeEvent(event, stage.frame) : event));
    change({ events });
    $("#kind").value = "unknown"; // the next one is named anew
  }
}

function nameEvent() { // of the open one, or else the next
  if (!state.events.some((event) => event.isOpen)) return;
  change({ events: state.events.map((event) => (event.isOpen ? { ...event, kind: $("#kind").value } : event)) });
}

function closeEvent({ kind, first, last }, frame) {
  const end = Math.max(last, frame);
  return { kind, first: Math.min(first, end), last: end };
}

const nameOf = ({ kind }) => (kind === "unknown" ? "not named" : kind);

function drawEvents() {
  const list = $("#events");
  if (!list) return;
  list.replaceChildren(...state.events.map((event, place) => {
    const row = document.createElement("li");
    const text = document.createElement("button");
    text.className = "quiet";
    text.textContent = `${nameOf(event)}, frame ${event.first + 1}${event.isOpen ? " …" : ` to ${event.last + 1}`}`;
    text.onclick = () => stage.show(event.first);
    const remove = document.createElement("button");
    remove.className = "quiet";
    remove.textContent = "remove";
    remove.setAttribute("aria-label", `remove ${nameOf(event)} at frame ${event.first + 1}`);
    remove.onclick = () => change({ events: state.events.filter((_, other) => other !== place) });
    row.append(text, " ", remove);
    return row;
  }));
  $("#event").firstChild.textContent = state.events.some((event) => event.isOpen) ? "It ends here " : "It begins here ";
}

// Sending

function bodyOf() {
  const known = { verify: ["verdict", "success", "grade", "progress", "kinds", "note"], compare: ["verdict", "kinds", "note"],
    mark: ["success", "points", "events", "note"] }[facts.kind];
  const body = Object.fromEntries(known.map((name) => [name, state[name]]));
  if (body.events) body.events = body.events.map((event) => closeEvent(event, event.isOpen ? stage.frames - 1 : event.last));
  if (facts.kind === "verify" && body.verdict !== "reject" && body.verdict !== "accept") body.verdict = "correct";
  if (body.verdict === "accept") Object.assign(body, facts.proposed); // what was shown is what is accepted
  return body;
}

let isSending = false;
async function submit() {
  if (isSending) return;
  isSending = true;
  try {
    const answer = await sendAnswer(facts, bodyOf(), (performance.now() - started) / 1000, say);
    isSending = false; // or leaving the page would ask whether to leave
    finish(answer);
  } catch (error) {
    isSending = false;
    say(error.message);
    status.focus();
  }
}

function finish(answer) {
  draft.drop();
  location.href = answer.next;
}

// Buttons and keys

for (const button of $$("[data-set]")) {
  button.onclick = () => {
    const name = button.dataset.set, value = JSON.parse(button.value);
    change({ [name]: state[name] === value ? null : value });
    if (name === "verdict" && value === "accept") submit();
    if (name === "verdict" && value === "reject") $("#note").focus();
  };
}
for (const box of $$("input[name=kinds]")) {
  box.onchange = () => change({ kinds: $$("input[name=kinds]:checked").map((one) => one.value) });
}
$("#note")?.addEventListener("input", (event) => change({ note: event.target.value }, false));
$("#send").onclick = submit;
$("#play").onclick = () => stage.toggle();
$("#back").onclick = () => stage.step(-1);
$("#forward").onclick = () => stage.step(1);
$("#slower").onclick = () => stage.setSpeed(stage.speed / 2);
$("#faster").onclick = () => stage.setSpeed(stage.speed * 2);
$("#undo")?.addEventListener("click", undo);
$("#record")?.addEventListener("click", toggleRecording);
$("#event")?.addEventListener("click", toggleEvent);
$("#kind")?.addEventListener("change", nameEvent);
$("#moment")?.addEventListener("click", () => mark(Number(slider.value) / 100));
if (facts.kind === "mark") timeline.onDrag = (frame, progress) => { stage.show(frame); mark(progress); };

stage.addEventListener("frame", (event) => {
  if (isRecording && stage.isPlaying) record(event.detail.before, stage.frame);
  drawFrame();
});
stage.addEventListener("play", () => {
  if (isRecording && !stage.isPlaying) { isRecording = false; $("#record").setAttribute("aria-pressed", "false"); }
  drawFrame();
});
stage.addEventListener("broken", () => say("A video cannot be shown in this browser."));

const keys = {
  " ": () => stage.toggle(), ArrowLeft: () => stage.step(-1), ArrowRight: () => stage.step(1), ",": () => stage.step(-10),
  ".": () => stage.step(10), Home: () => stage.show(0), End: () => stage.show(stage.frames - 1),
  "[": () => stage.setSpeed(stage.speed / 2), "]": () => stage.setSpeed(stage.speed * 2), Enter: submit, z: undo,
  "?": () => { $("#keys").open = !$("#keys").open; },
};
const press = (selector) => () => $(selector)?.click();
if (facts.kind === "verify") {
  Object.assign(keys, { a: press("[data-key=a]"), r: press("[data-key=r]"), s: press("[data-key=s]"), f: press("[data-key=f]") });
  for (const grade of [1, 2, 3, 4, 5]) keys[grade] = press(`[data-key="${grade}"]`);
} else if (facts.kind === "compare") {
  Object.assign(keys, { 1: press("[data-key='1']"), 2: press("[data-key='2']"), t: press("[data-key=t]"), u: press("[data-key=u]") });
} else {
  Object.assign(keys, { s: press("[data-key=s]"), f: press("[data-key=f]"), e: toggleEvent, k: () => $("#kind").focus(), p: toggleRecording, d: () => mark(1) });
  for (let digit = 0; digit < 10; digit++) keys[digit] = () => mark(digit / 10);
}
addEventListener("keydown", (event) => {
  const { target } = event;
  if (target.matches("select") && ["Enter", "Escape"].includes(event.key)) { event.preventDefault(); target.blur(); return; }
  if (target.id === "note" && event.key === "Enter" && !event.shiftKey) { event.preventDefault(); submit(); return; }
  if (target.id === "note" && event.key === "Escape") { target.blur(); return; }
  const isTyping = target.matches("textarea, input:not([type=range]):not([type=checkbox]), select");
  const isSliding = target.matches("input[type=range]") && event.key.startsWith("Arrow");
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping || isSliding) return;
  if (event.key === "Enter" && target.matches("a, button")) return;
  if (event.key === " " && target.matches("button, a, summary, input")) return;
  const act = keys[event.key];
  if (act) { event.preventDefault(); act(); }
});
addEventListener("beforeunload", (event) => { if (isSending) event.preventDefault(); });

// What the model that is being taught says: only where this person has answered, so that it does not sway them.

async function showModel() {
  const answer = await fetch(`/items/${facts.item}/curve`, { headers: { accept: "application/json" } });
  if (!answer.ok) return;
  const { points, verdict, caution } = await answer.json();
  timeline.model = points;
  $("#model").textContent = `The model that you are teaching says: ${verdict}.${caution ? ` It is not trusted yet: ${caution}` : ""}`;
  drawFrame();
}

async function showLesson() {
  const answer = await fetch("/teach/state", { headers: { accept: "application/json" } }).catch(() => null);
  const [one] = answer?.ok ? await answer.json() : [];
  if (!one) return;
  const { lesson, is_teaching: isTeaching, answers } = one;
  const said = lesson ? `The model so far: ${lesson.title}` : `${answers} answers stored; a model is taught after every few.`;
  $("#lesson").textContent = said + (isTeaching ? " (teaching again)" : "");
  setTimeout(showLesson, 4000);
}
showLesson();
if (facts.answer) showModel();

draw();
stage.show(0);
document.body.dataset.ready = "true";
sendLeftOver(facts, say).then((answer) => { if (answer) finish(answer); }, (error) => say(error.message));
window.demerit = { stage, facts }; // for tests and the curious
