// The trajectory viewer of a report. It reads the data blocks of its page (see packing.py), or asks its server for them, and shows
// every text through textContent: no text becomes markup.
"use strict";

const ROW = 44; // pixels of a row of the list, as in style.css
const OUTCOMES = ["success", "failure", "out of time"];
const KINDS = ["won", "lost", "late"]; // their CSS classes
const MARKS = ["✓", "✗", "◷"];
const DIFFER = "differ";
const PARTS = ["instructions", "past", "state", "words", "menu"]; // of a prompt, as in packing.py

const at = (id) => document.getElementById(id);
let index = JSON.parse(at("index").textContent); // of runs and sources
const loaded = new Map(); // key and version of a source -> promise of its episodes

// What is shown; everything on the page follows from it.
const state = { source: 0, beside: -1, outcome: "", order: "", task: "", iteration: "", episode: -1, step: 0 };
let mine = null; // episodes of the source
let theirs = null; // of the one beside it
let found = []; // numbers of the episodes that pass the filters

// ---- data ---------------------------------------------------------------------------------------------------------

// The packed episodes of a source and its pictures, base64 of PNG files: from the page, or from a server.
async function packed(number) {
  const { key, version } = index.sources[number];
  if (!version)
    return { block: at(`source-${number}`).textContent, pictures: JSON.parse(at("pictures").textContent) };
  const reply = await fetch(`episodes?of=${encodeURIComponent(key)}`);
  if (!reply.ok) throw new Error(await reply.text());
  return reply.json();
}

async function unpack(number) {
  const { block, pictures, missing = [] } = await packed(number);
  const plainly = atob(block);
  const bytes = new Uint8Array(plainly.length);
  for (let place = 0; place < plainly.length; place += 1) bytes[place] = plainly.charCodeAt(place);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return { ...unfold(JSON.parse(await new Response(plain).text())), pictures, missing };
}

function unfold({ texts, menus, tokens, groups, episodes }) {
  const byTask = new Map();
  const all = episodes.map(([task, goal, outcome, seed, iteration, steps], number) => {
    const name = texts[task];
    const same = byTask.get(name) ?? byTask.set(name, []).get(name);
    const total = steps.reduce((sum, step) => sum + step[4], 0);
    const words = goal < 0 ? "" : texts[goal];
    const search = `${name}\n${words}`.toLowerCase();
    same.push(number);
    return { number, name, words, search, outcome, seed, iteration, steps, total, repetition: same.length - 1 };
  });
  return { texts, menus, tokens, groups, byTask, episodes: all };
}

function load(number) {
  if (number < 0) return Promise.resolve(null);
  const { key, version } = index.sources[number];
  const name = `${version} ${key}`;
  if (!loaded.has(name)) loaded.set(name, unpack(number));
  loaded.get(name).catch(() => version && loaded.delete(name)); // it is asked for again
  return loaded.get(name);
}

function step(data, episode, place) {
  const [seen, menu, said, chosen, reward, illegal, value, advantage, hidden, rest, odds, written, correction, images,
    prompt, tokens] = episode.steps[place];
  return {
    seen: data.texts[seen],
    menu: data.menus[menu].map((text) => data.texts[text]),
    said: said < 0 ? null : data.texts[said],
    written: written < 0 ? null : data.texts[written],
    correction: correction.map(([kind, text]) => [kind, data.texts[text]]),
    prompt: prompt.map(([part, text]) => [PARTS[part < 0 ? ~part : part], data.texts[text], part >= 0]),
    tokens: tokens < 0 ? null : data.tokens[tokens].map((text) => data.texts[text]),
    chosen, reward, illegal, value, advantage, hidden, rest, odds, images,
  };
}

function rewardsToGo(episode, gamma) {
  const returns = new Array(episode.steps.length);
  let total = 0;
  for (let place = returns.length - 1; place >= 0; place -= 1) {
    total = episode.steps[place][4] + gamma * total;
    returns[place] = total;
  }
  return returns;
}

// The other side's episode of the same task: the same repetition of it, or else its last one.
function partner(episode) {
  const same = theirs?.byTask.get(episode.name);
  return same ? theirs.episodes[same[Math.min(episode.repetition, same.length - 1)]] : null;
}

function matches(episode) {
  if (state.task && !episode.search.includes(state.task.toLowerCase())) return false;
  if (state.iteration !== "" && episode.iteration !== Number(state.iteration)) return false;
  if (state.outcome !== DIFFER) return state.outcome === "" || OUTCOMES[episode.outcome] === state.outcome;
  const other = partner(episode);
  return other !== null && (other.outcome === 0) !== (episode.outcome === 0);
}

// ---- drawing ------------------------------------------------------------------------------------------------------

function make(tag, kind, ...inside) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...inside.filter((part) => part !== null));
  return made;
}

const signed = (number) => (number < 0 ? "−" : "+") + Math.abs(number).toFixed(2);
const percent = (part) => `${(part / 100).toFixed(1)}%`;
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const badge = ({ outcome }) => make("span", KINDS[outcome], `${MARKS[outcome]} ${OUTCOMES[outcome]}`);
const title = (number) => `${index.runs[index.sources[number].run].name}: ${index.sources[number].label}`;

function drawRow(place) {
  const episode = mine.episodes[found[place]];
  const other = theirs && partner(episode);
  const outcome = (shown) => make("span", shown ? KINDS[shown.outcome] : "", shown ? MARKS[shown.outcome] : "·");
  const marks = make("span", "marks", outcome(episode), theirs ? outcome(other) : null);
  const when = episode.iteration === null ? "" : `iteration ${episode.iteration} · `;
  const { won, of } = (state.order === "apart" && episode.apart) || {};
  const runs = of ? `${won} of ${plural(of, "run")} won · ` : "";
  const numbers = `${runs}${when}return ${signed(episode.total)} · ${plural(episode.steps.length, "step")}`;
  const row = make("div", "row", marks, make("span", "name", episode.name), make("small", "", numbers));
  const outcomes = [episode, ...(other ? [other] : [])].map((each) => OUTCOMES[each.outcome]).join(", ");
  row.id = `row-${place}`;
  row.title = episode.name;
  row.style.top = `${place * ROW}px`;
  row.setAttribute("role", "option");
  row.setAttribute("aria-label", `${episode.name}, ${outcomes}, ${numbers}`);
  row.setAttribute("aria-selected", String(episode.number === state.episode));
  row.setAttribute("aria-setsize", String(found.length));
  row.setAttribute("aria-posinset", String(place + 1));
  row.addEventListener("click", () => choose(place));
  return row;
}

// The groups of tasks with the least success, each a link to its first failure.
function drawGroups() {
  at("groups").hidden = !mine?.groups.length;
  const rows = (mine?.groups ?? []).map(([text, rate, low, high, count, failed]) => {
    const [shown, from, to] = [rate, low, high].map((part) => Math.round(100 * part));
    const name = make("a", "", mine.texts[text]);
    name.href = `#${new URLSearchParams({ of: index.sources[state.source].key, episode: failed })}`;
    const numbers = [`${shown}% [${from}, ${to}]`, count.toLocaleString("en")];
    return make("tr", "", make("td", "", name), ...numbers.map((number) => make("td", "number", number)));
  });
  at("groups").querySelector("tbody").replaceChildren(...rows);
}

// Only the rows that can be seen are there: ten thousand elements would make every key press wait.
function drawList() {
  const list = at("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
  const last = Math.min(found.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 5);
  const rows = [];
  for (let place = first; place < last; place += 1) rows.push(drawRow(place));
  at("rows").style.height = `${found.length * ROW}px`;
  at("rows").replaceChildren(...rows);
  const chosen = at(`row-${found.indexOf(state.episode)}`);
  if (chosen) list.setAttribute("aria-activedescendant", chosen.id);
  else list.removeAttribute("aria-activedescendant");
}

function scrollToChosen() {
  const list = at("list");
  const top = found.indexOf(state.episode) * ROW;
  if (top < list.scrollTop || top + ROW > list.scrollTop + list.clientHeight)
    list.scrollTop = top - list.clientHeight / 2 + ROW / 2;
}

function drawMenu(now) {
  const items = now.menu.map((action, place) => {
    const item = make("li", place === now.chosen ? "chosen" : "", make("span", "", action));
    if (now.odds.length) {
      const bar = make("i");
      bar.style.width = percent(now.odds[place]);
      item.append(make("span", "bar", bar), make("span", "odds", percent(now.odds[place])));
    }
    if (place === now.chosen) item.setAttribute("aria-current", "true");
    return item;
  });
  const rest = now.odds.length ? `, ${percent(now.rest)} in all` : "";
  if (now.hidden) items.push(make("li", "", make("small", "", `and ${now.hidden} more${rest}`)));
  return make("ul", "menu", ...items);
}

// The state as it was shown: pictures, text or both.
function drawState(now, pictures) {
  const parts = now.images.map((number, place) => {
    if (number < 0) return make("p", "note", "This picture is left out of the page.");
    const picture = make("img", "picture");
    picture.src = `data:image/png;base64,${pictures[number]}`;
    picture.alt = `Picture ${place + 1} of the state`;
    return picture;
  });
  if (now.seen || !parts.length) parts.push(make("pre", "", now.seen));
  return make("div", "", make("h5", "", "Observation"), ...parts);
}

// Words of the thought that the corrector left, struck out or added.
function drawCorrection(runs) {
  const tags = { "-1": "del", 0: "span", 1: "ins" };
  return make("blockquote", "correction", ...runs.flatMap(([kind, text]) => [make(tags[kind], "", text), " "]));
}

// The prompt, its parts told apart or token by token; how it is shown stays from step to step.
let reading = false;
let spelled = false;
function drawPrompt({ prompt, tokens }, number) {
  if (!prompt.length) return null;
  const most = index.runs[index.sources[number].run].most?.toLocaleString("en");
  const cut = most ? ` and before it is cut to ${most} tokens` : "";
  let words = `Prompt of the policy, before the model's chat template (if it has one)${cut}`;
  if (index.runs.length > 1 && !index.sources[number].version) words += "; tokens: in the report of this run alone";
  if (tokens) words = `Prompt that the policy read: ${plural(tokens.length, "token")}`;
  if (prompt.some(([, , read]) => !read)) words += ", cut to fit; struck out: what it did not read";
  const parts = () => prompt.map(([part, text, read]) => {
    const span = make(read ? "span" : "del", `part ${part}`, text);
    span.title = read ? part : `${part}, not read`;
    return span;
  });
  const pieces = () => tokens.map((text) => make("span", "token", text.replaceAll("\n", "↵\n")));
  const inside = make("pre", "");
  inside.tabIndex = 0; // it scrolls
  const button = make("button", "", "tokens");
  const draw = () => {
    inside.replaceChildren(...(tokens && spelled ? pieces() : parts()));
    button.setAttribute("aria-pressed", String(spelled));
  };
  button.type = "button";
  button.addEventListener("click", () => ((spelled = !spelled), draw()));
  const folded = make("details", "prompt", make("summary", "", words), tokens ? button : null, inside);
  folded.open = reading;
  folded.addEventListener("toggle", () => (reading = folded.open));
  draw();
  return folded;
}

function drawNumbers(now, toGo, columns) {
  const pairs = [["reward", now.reward], ["reward-to-go", toGo]];
  if (columns.advantage && now.advantage !== null) pairs.push(["advantage", now.advantage]);
  if (columns.value) pairs.push(["value", now.value]);
  const list = make("dl", "numbers");
  for (const [name, number] of pairs)
    list.append(make("div", "", make("dt", "", name), make("dd", "", signed(number))));
  return list;
}

function drawTable(data, episode, returns, place, columns) {
  const names = ["step", "action", "reward", "to go"];
  if (columns.advantage) names.push("advantage");
  if (columns.value) names.push("value");
  const cell = (text, column) => make("td", column === 1 ? "action" : "number", text);
  const body = episode.steps.map((_, number) => {
    const now = step(data, episode, number);
    const cells = [String(number + 1), now.menu[now.chosen] ?? "", signed(now.reward), signed(returns[number])];
    if (columns.advantage) cells.push(now.advantage === null ? "" : signed(now.advantage));
    if (columns.value) cells.push(signed(now.value));
    const row = make("tr", number === place ? "now" : "", ...cells.map(cell));
    if (number === place) row.setAttribute("aria-current", "step");
    if (now.illegal) row.children[1].append(make("span", "lost", " illegal"));
    row.addEventListener("click", () => go(number));
    return row;
  });
  const heads = names.map((name, column) => make("th", column === 1 ? "" : "number", name));
  for (const head of heads) head.scope = "col";
  const table = make("table", "overview", make("thead", "", make("tr", "", ...heads)), make("tbody", "", ...body));
  const scroller = make("div", "wide", table);
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "group");
  scroller.setAttribute("aria-label", "All steps");
  return scroller;
}

function drawEpisode(number, data, episode) {
  const panel = make("article", "episode");
  panel.append(make("p", "whose", title(number)));
  if (!episode) return panel.append(make("p", "note", "No episode of this task is here.")), panel;
  const count = episode.steps.length;
  const place = Math.min(state.step, count - 1);
  const facts = [` return ${signed(episode.total)}`, plural(count, "step")];
  if (episode.iteration !== null) facts.push(`iteration ${episode.iteration}`);
  if (!theirs) facts.push(`seed ${episode.seed}`);
  panel.append(make("h3", "", episode.name), make("p", "facts", badge(episode), facts.join(" · ")));
  if (episode.words) panel.append(make("p", "goal", episode.words));
  if (!count) return panel.append(make("p", "note", "This episode has no steps.")), panel;
  const now = step(data, episode, place);
  const { steps } = episode;
  const columns = { advantage: steps.some((each) => each[7] !== null), value: steps.some((each) => each[6]) };
  const gamma = index.runs[index.sources[number].run].gamma;
  const returns = rewardsToGo(episode, gamma);
  const over = state.step >= count ? make("span", "note", " the episode ended here") : null;
  const illegal = now.illegal ? make("span", "lost", " illegal") : null;
  const words = [["Reflection", now.said], ["Written by the policy", now.written]];
  const said = words
    .filter(([, text]) => text !== null)
    .flatMap(([name, text]) => [make("h5", "", name), make("blockquote", "", text)]);
  if (now.correction.length) said.push(make("h5", "", "Thought, corrected"), drawCorrection(now.correction));
  const actions = now.odds.length ? "Actions, with the policy's probabilities" : "Actions";
  const about = ["All steps"];
  if (gamma !== 1) about.push(`reward-to-go discounted by ${gamma}`);
  if (columns.advantage) about.push("advantages as the trainer used them");
  panel.append(
    make("h4", "", `Step ${place + 1} of ${count}`, illegal, over),
    drawNumbers(now, returns[place], columns),
    make("div", "step",
      drawState(now, data.pictures),
      make("div", "", ...said, make("h5", "", actions), drawMenu(now))),
    drawPrompt(now, number) ?? "",
    make("h5", "", about.join("; ")),
    drawTable(data, episode, returns, place, columns),
  );
  return panel;
}

function drawStage() {
  const episode = found.length ? mine.episodes[state.episode] : null;
  const panels = [];
  if (!episode) panels.push(make("p", "note", "No episode fits these filters."));
  else panels.push(drawEpisode(state.source, mine, episode));
  if (episode && theirs) panels.push(drawEpisode(state.beside, theirs, partner(episode)));
  const before = [...document.querySelectorAll(".overview")].map((table) => table.parentNode.scrollTop);
  const inside = at("episodes").contains(document.activeElement);
  at("episodes").replaceChildren(...panels);
  for (const box of document.querySelectorAll(".step pre, .step blockquote, .goal"))
    if (box.scrollHeight > box.clientHeight) box.tabIndex = 0;
  if (inside) at("viewer").focus({ preventScroll: true }); // what had the focus is gone, and the keys go on
  at("episodes").classList.toggle("two", panels.length > 1);
  document.querySelectorAll(".overview").forEach((table, side) => follow(table, before[side] ?? 0));
  drawControls(episode ? length() : 0);
}

function drawControls(count) {
  at("slider").max = String(Math.max(1, count));
  at("slider").value = String(state.step + 1);
  at("slider").setAttribute("aria-valuetext", `step ${state.step + 1} of ${count}`);
  at("place").textContent = count ? `${state.step + 1} / ${count}` : "";
  // not "disabled", which would take the focus away
  for (const id of ["first", "back"]) at(id).setAttribute("aria-disabled", String(!count || state.step === 0));
  for (const id of ["forward", "last"]) at(id).setAttribute("aria-disabled", String(!count || state.step >= count - 1));
}

// Keep the present step of a long table in sight without moving the page.
function follow(table, before) {
  const box = table.parentNode;
  const row = table.querySelector(".now");
  box.scrollTop = before;
  if (!row) return;
  const top = row.offsetTop;
  if (top < box.scrollTop + 40 || top + row.offsetHeight > box.scrollTop + box.clientHeight)
    box.scrollTop = top - box.clientHeight / 2;
}

// ---- what people do -----------------------------------------------------------------------------------------------

function length() {
  const episode = mine.episodes[state.episode];
  const other = theirs ? partner(episode) : null;
  return Math.max(episode.steps.length, other ? other.steps.length : 0);
}

function go(place) {
  if (!found.length) return;
  state.step = Math.max(0, Math.min(place, length() - 1));
  drawStage();
  remember();
}

function choose(place) {
  if (!found.length) return;
  state.episode = found[Math.max(0, Math.min(place, found.length - 1))];
  state.step = 0;
  scrollToChosen();
  drawList();
  go(0);
}

const ORDERS = {
  failed: ["failures first", (a, b) => (a.outcome === 0) - (b.outcome === 0)],
  newest: ["newest first", (a, b) => b.iteration - a.iteration],
  recorded: ["as recorded", () => 0],
  low: ["lowest return", (a, b) => a.total - b.total],
  high: ["highest return", (a, b) => b.total - a.total],
  short: ["fewest steps", (a, b) => a.steps.length - b.steps.length],
  long: ["most steps", (a, b) => b.steps.length - a.steps.length],
  apart: ["runs disagree most", (a, b) => b.apart.outcome - a.apart.outcome || b.apart.total - a.apart.total],
};

// The same policy's episodes in all runs.
function alike() {
  const { label } = index.sources[state.source];
  return [...index.sources.keys()].filter((number) => index.sources[number].label === label);
}

// Give each episode how far the runs are apart on its task: the variance of success, and the range of returns.
async function compareRuns(shown) {
  const loaded = await Promise.allSettled(alike().map(load)); // a run that cannot be unpacked is not compared
  const runs = loaded.filter(({ status }) => status === "fulfilled").map(({ value }) => value);
  for (const episode of shown.episodes) {
    const { name, repetition } = episode;
    const same = runs.flatMap(({ byTask, episodes }) => episodes[byTask.get(name)?.[repetition]] ?? []);
    const [won, totals] = [same.filter(({ outcome }) => !outcome).length, same.map(({ total }) => total)];
    const [of, share, total] = [same.length, won / same.length, Math.max(...totals) - Math.min(...totals)];
    episode.apart = { won, of, outcome: share * (1 - share), total };
  }
}

const usual = () => (index.sources[state.source].training ? "newest" : "failed");

// Read the form, and keep the episode where it still fits.
function filter() {
  const [, compare] = ORDERS[state.order || usual()];
  found = mine.episodes.filter(matches).sort(compare).map((episode) => episode.number);
  if (found.length && !found.includes(state.episode)) Object.assign(state, { episode: found[0], step: 0 });
  const all = mine.episodes.length;
  const part = found.length === all ? "" : `${found.length.toLocaleString("en")} of `;
  at("count").textContent = part + plural(all, "episode");
  if (found.length) state.step = Math.max(0, Math.min(state.step, length() - 1));
  scrollToChosen();
  drawList();
  drawStage();
  remember();
}

async function open() {
  const { source, beside } = state;
  at("count").textContent = "Unpacking…";
  try {
    const both = await Promise.all([load(source), load(beside)]);
    if (state.order === "apart") await compareRuns(both[0]);
    if (source !== state.source || beside !== state.beside) return; // something else was chosen meanwhile
    [mine, theirs] = both;
  } catch (error) {
    [mine, found] = [null, []];
    const cure = index.sources[source].version ? "" : "; a newer browser may do it";
    const why = `These episodes cannot be unpacked (${error.message})${cure}.`;
    at("count").textContent = at("absent").textContent = "";
    at("episodes").replaceChildren(make("p", "note", why));
    return drawList();
  }
  at("absent").textContent = [...mine.missing, ...(theirs?.missing ?? [])].join(" ");
  if (state.episode >= mine.episodes.length) state.episode = -1; // the first of the list
  drawGroups();
  fillForm();
  filter();
}

function fillForm() {
  const training = index.sources[state.source].training;
  if (!theirs && state.outcome === DIFFER) state.outcome = "";
  if (!training) state.iteration = "";
  at("iteration-label").hidden = !training;
  const outcomes = [["", "any"], ...OUTCOMES.map((name) => [name, name])];
  if (theirs) outcomes.push([DIFFER, "success of one only"]);
  at("outcome").replaceChildren(...outcomes.map(([value, name]) => new Option(name, value)));
  const fits = { newest: training, apart: alike().length > 1 };
  const orders = Object.entries(ORDERS).filter(([name]) => fits[name] ?? true);
  at("order").replaceChildren(...orders.map(([value, [name]]) => new Option(name, value)));
  for (const name of ["source", "beside", "outcome", "task", "iteration"]) at(name).value = String(state[name]);
  if (state.order === usual() || !orders.some(([name]) => name === state.order)) state.order = "";
  at("order").value = state.order || usual();
}

function fillSources(select) {
  index.runs.forEach((run, number) => {
    const group = make("optgroup");
    group.label = run.name;
    index.sources.forEach((source, place) => {
      const count = source.episodes === null ? "" : ` (${source.episodes.toLocaleString("en")})`;
      const words = source.label + count;
      if (source.run === number) group.append(new Option(words, place));
    });
    if (group.children.length) select.append(group);
  });
}

// ---- the address --------------------------------------------------------------------------------------------------

let waiting = 0;
function remember() {
  clearTimeout(waiting); // browsers refuse an address that changes with every key
  waiting = setTimeout(() => history.replaceState(null, "", `#${address()}`), 250);
}

function address() {
  const given = new URLSearchParams({ of: index.sources[state.source].key });
  if (state.beside >= 0) given.set("beside", index.sources[state.beside].key);
  for (const name of ["outcome", "order", "task", "iteration"]) if (state[name] !== "") given.set(name, state[name]);
  given.set("episode", state.episode);
  given.set("step", state.step + 1);
  return given.toString();
}

// Choose sources by their keys, where they are there.
function findSources(source, beside) {
  const place = (wanted) => index.sources.findIndex(({ key }) => key === wanted);
  state.source = place(source) < 0 ? index.first : place(source);
  state.beside = place(beside);
}

// Take up what the address says; true where it says something of episodes.
function recall() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.has("of")) return false;
  const whole = (name) => Math.max(0, Number.parseInt(given.get(name), 10) || 0);
  findSources(given.get("of"), given.get("beside"));
  state.outcome = [...OUTCOMES, DIFFER].includes(given.get("outcome")) ? given.get("outcome") : "";
  state.order = given.get("order") in ORDERS ? given.get("order") : "";
  state.task = given.get("task") ?? "";
  state.iteration = /^\d+$/.test(given.get("iteration") ?? "") ? given.get("iteration") : "";
  Object.assign(state, { episode: given.has("episode") ? whole("episode") : -1, step: Math.max(0, whole("step") - 1) });
  return true;
}

// ---- keys and events ----------------------------------------------------------------------------------------------

const KEYS = {
  ArrowLeft: () => go(state.step - 1),
  ArrowRight: () => go(state.step + 1),
  ArrowUp: () => choose(found.indexOf(state.episode) - 1),
  ArrowDown: () => choose(found.indexOf(state.episode) + 1),
  Home: () => go(0),
  End: () => go(Infinity),
};
Object.assign(KEYS, { h: KEYS.ArrowLeft, l: KEYS.ArrowRight, k: KEYS.ArrowUp, j: KEYS.ArrowDown });

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || at("help").open) return;
  const field = event.target.closest("input:not([type=range]), select, textarea");
  if (field) {
    if (event.key === "Escape") at("viewer").focus();
    return;
  }
  if (!mine) return;
  if (event.key === "/") at("task").focus();
  else if (event.key === "?") at("help").showModal();
  else if (KEYS[event.key] && at("viewer").contains(event.target)) KEYS[event.key]();
  else return;
  event.preventDefault();
}

function onChoice(event) {
  const { id, value } = event.target;
  state[id] = id === "source" || id === "beside" ? Number(value) : value;
  if (id === "source" || id === "order") Object.assign(state, { episode: -1, step: 0 });
  if (id === "source" || id === "beside" || value === "apart") open();
  else if (mine && (state.order !== "apart" || mine.episodes.every(({ apart }) => apart))) filter();
  else open();
}

function fillChoices() {
  at("source").replaceChildren();
  at("beside").replaceChildren(new Option("nothing", -1));
  for (const id of ["source", "beside"]) fillSources(at(id));
}

// Take up another index of a page that follows its runs: what is shown stays, where it still exists.
async function takeUp(fresh) {
  const shown = mine?.episodes[state.episode];
  const key = (number) => index.sources[number]?.key;
  const version = (number) => `${index.sources[number]?.version} ${key(number)}`;
  const [seen, keys] = [[version(state.source), version(state.beside)], [key(state.source), key(state.beside)]];
  index = fresh;
  findSources(...keys);
  const now = new Set(index.sources.map((_, number) => version(number)));
  for (const name of loaded.keys()) if (!now.has(name)) loaded.delete(name);
  at("viewer").hidden = !index.sources.length;
  if (!index.sources.length) return;
  fillChoices();
  if (seen[0] === version(state.source) && seen[1] === version(state.beside)) return fillForm();
  const data = await load(state.source).catch(() => null);
  const same = (one) => one.name === shown.name && one.iteration === shown.iteration && one.seed === shown.seed
    && one.repetition === shown.repetition;
  if (shown && data) state.episode = data.episodes.findIndex(same); // files between those that are here may have gone
  await open();
}

function start() {
  fillChoices();
  at("filters").addEventListener("input", onChoice);
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  at("help-button").addEventListener("click", () => at("help").showModal());
  for (const [id, key] of Object.entries({ first: "Home", back: "ArrowLeft", forward: "ArrowRight", last: "End" }))
    at(id).addEventListener("click", KEYS[key]);
  at("slider").addEventListener("input", (event) => go(event.target.valueAsNumber - 1));
  at("list").addEventListener("scroll", () => mine && drawList());
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", () => recall() && open());
  if (!index.sources.length) return;
  state.source = index.first;
  at("viewer").hidden = false;
  const linked = recall();
  open().then(() => linked && (at("viewer").focus({ preventScroll: true }), at("viewer").scrollIntoView()));
}

start();
