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
const empty = { verdict: null, success: null, grade: null, progress: null, kinds: [], note: "", points: [], events: [], stages: [] };
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
  timeline.draw(stage.frame, state.points, state.events, state.stages);
  drawEvents();
  drawStages();
  drawFrame();
}

function drawFrame() {
  $("#frame").textContent = `frame ${stage.frame + 1} of ${stage.frames}`;
  const play = $("#play");
  play.textContent = stage.isPlaying ? "Pause" : "Play";
  $("#speed").textContent = `${stage.speed}×`;
  timeline.draw(stage.frame, state.points, state.events, state.stages);
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

const nameOf = (span) => span.name ?? (span.kind === "unknown" ? "not named" : span.kind);

function drawSpans(list, spans, field) {
  list.replaceChildren(...spans.map((span, place) => {
    const name = nameOf(span);
    const row = document.createElement("li");
    const text = document.createElement("button");
    text.className = "quiet";
    text.textContent = `${name}, frame ${span.first + 1}${span.isOpen ? " …" : ` to ${span.last + 1}`}`;
    text.onclick = () => stage.show(span.first);
    const remove = document.createElement("button");
    remove.className = "quiet";
    remove.textContent = "remove";
    remove.setAttribute("aria-label", `remove ${name} at frame ${span.first + 1}`);
    remove.onclick = () => change({ [field]: spans.filter((_, other) => other !== place) });
    row.append(text, " ", remove);
    return row;
  }));
}

function drawEvents() {
  const list = $("#events");
  if (!list) return;
  drawSpans(list, state.events, "events");
  $("#event").firstChild.textContent = state.events.some((event) => event.isOpen) ? "It ends here " : "It begins here ";
}

// Stages follow one another: each begins where the one before it ends. The names of a task are offered again.

const known = `stages of ${facts.instruction}`;
const knownNames = () => JSON.parse(localStorage.getItem(known) ?? "[]");

function nextName() {
  return knownNames().find((name) => !state.stages.some((one) => one.name === name)) ?? "";
}

function endStage() {
  const name = $("#stage").value.trim();
  if (!name) { say("Type first what this part of the work is called."); $("#stage").focus(); return; }
  const before = state.stages.filter((one) => one.last < stage.frame);
  const after = state.stages.filter((one) => one.last > stage.frame).map((one) => ({ ...one, first: Math.max(one.first, stage.frame + 1) }));
  const ended = { name, first: (before.at(-1)?.last ?? -1) + 1, last: stage.frame };
  localStorage.setItem(known, JSON.stringify([...new Set([...knownNames(), name])].slice(-30)));
  change({ stages: [...before, ended, ...after] });
  $("#stage").value = nextName();
  say(`${name} ends at frame ${stage.frame + 1}.`);
}

function drawStages() {
  const list = $("#stages");
  if (!list) return;
  drawSpans(list, state.stages, "stages");
  $("#stages-known").replaceChildren(...knownNames().map((name) => new Option(name)));
}

// Sending

function bodyOf() {
  const known = { verify: ["verdict", "success", "grade", "progress", "kinds", "note"], compare: ["verdict", "kinds", "note"],
    mark: ["success", "points", "events", "stages", "note"] }[facts.kind];
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
$("#stage-done")?.addEventListener("click", endStage);
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
  Object.assign(keys, { s: press("[data-key=s]"), f: press("[data-key=f]"), e: toggleEvent, k: () => $("#kind").focus(), w: endStage, p: toggleRecording, d: () => mark(1) });
  for (let digit = 0; digit < 10; digit++) keys[digit] = () => mark(digit / 10);
}
addEventListener("keydown", (event) => {
  const { target } = event;
  if (target.id === "stage" && event.key === "Enter") { event.preventDefault(); target.blur(); endStage(); return; }
  if (target.matches("select, #stage") && ["Enter", "Escape"].includes(event.key)) { event.preventDefault(); target.blur(); return; }
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
if ($("#stage")) $("#stage").value = nextName();
stage.show(0);
document.body.dataset.ready = "true";
sendLeftOver(facts, say).then((answer) => { if (answer) finish(answer); }, (error) => say(error.message));
window.demerit = { stage, facts }; // for tests and the curious
