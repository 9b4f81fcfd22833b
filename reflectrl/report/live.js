// Follows runs: when the server says that they changed, it takes the page anew and changes in place what differs, so that
// scroll positions, open parts, selections and the viewer's place stay.
"use strict";

const page = document.documentElement;
const WRITTEN = "time[datetime]";
let busy = false;
let more = false;

// Make a node equal to another one, with as few changes as keep what people see and have opened.
function become(old, fresh) {
  if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value && !old.href?.startsWith("blob:")) old.setAttribute(name, value);
  const [mine, theirs] = [[...old.childNodes], [...fresh.childNodes]];
  theirs.forEach((child, place) => (place < mine.length ? become(mine[place], child) : old.append(child)));
  for (const child of mine.slice(theirs.length)) child.remove();
}

async function refresh() {
  if (busy) return void (more = true);
  busy = true;
  try {
    const reply = await fetch("./");
    if (!reply.ok) throw new Error(await reply.text());
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
    addLinks(fresh);
    if (unit) drawOver(fresh);
    for (const id of ["progress", "verdict", "results", "curves", "missing", "runs"])
      become(document.getElementById(id), fresh.getElementById(id));
    page.dataset.version = fresh.documentElement.dataset.version;
    count();
    await takeUp(JSON.parse(fresh.getElementById("index").textContent));
  } catch (error) {
    say(`This page could not be renewed (${error.message}).`);
  }
  busy = false;
  if (more) {
    more = false;
    refresh();
  }
}

function say(words) {
  document.getElementById("link").textContent = words;
  document.getElementById("link").hidden = !words;
}

// How long ago each run was written to.
function count() {
  for (const time of document.querySelectorAll(WRITTEN)) {
    const seconds = Math.max(0, Math.round((Date.now() - Date.parse(time.dateTime)) / 1000));
    const [number, unit] = seconds < 100 ? [seconds, "s"] : seconds < 6000 ? [seconds / 60, "min"] : [seconds / 3600, "h"];
    time.textContent = `${Math.round(number)} ${unit} ago`;
  }
}

const events = new EventSource("events");
events.addEventListener("message", ({ data }) => {
  say("");
  if (data !== page.dataset.version) refresh();
});
events.addEventListener("error", () => say("The server cannot be reached; this is what it said last. Trying again."));
count();
setInterval(count, 1000);
