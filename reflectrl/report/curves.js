// Learning curves over another horizontal axis, and their values under the pointer. Links that save a curve as an SVG file
// of its own, with its name, its legend and all its styles, and a table as CSV.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity",
  "font-family", "font-size"];
const LINE = 18; // height of the name and of a run in the legend
const LONGEST = 48; // characters of a run's name that have room there

function drawn(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

// Write the style of each element into its copy: most programs that read SVG files know neither style sheets with
// variables nor the classes of this page. Without the dark colours, which no paper can use.
function copied(svg) {
  const copy = svg.cloneNode(true);
  const copies = [...copy.querySelectorAll("path, text")];
  document.documentElement.classList.add("light");
  for (const element of svg.querySelectorAll("path, text")) {
    const styles = getComputedStyle(element);
    const made = copies.shift();
    for (const name of STYLES) made.setAttribute(name, styles.getPropertyValue(name));
    made.removeAttribute("class");
  }
  document.documentElement.classList.remove("light");
  for (const hidden of copy.querySelectorAll("[hidden]")) hidden.remove();
  for (const element of [copy, ...copy.querySelectorAll("*")])
    for (const { name } of [...element.attributes])
      if (/^(role|aria-|data-)/.test(name)) element.removeAttribute(name);
  return copy;
}

function saved(svg, name) {
  const copy = copied(svg);
  const { width, height } = svg.viewBox.baseVal;
  const words = { fill: "#1b1f24", "font-family": "sans-serif", "font-size": "12px" };
  const added = [drawn("text", { ...words, x: 6, y: -6 }, name)];
  const runs = [...copy.querySelectorAll("g")];
  runs.forEach((run, place) => {
    run.removeAttribute("class");
    const y = height + LINE * (place + 0.5);
    const line = run.lastElementChild.cloneNode(false);
    line.setAttribute("d", `M6 ${y}h24`);
    const named = run.querySelector("title").textContent;
    const shown = named.length > LONGEST ? `${named.slice(0, LONGEST - 1)}…` : named;
    added.push(line, drawn("text", { ...words, x: 36, y: y + 4 }, shown));
  });
  const whole = [width, height + LINE * (1 + runs.length)];
  copy.setAttribute("viewBox", `0 ${-LINE} ${whole.join(" ")}`);
  copy.setAttribute("width", whole[0]);
  copy.setAttribute("height", whole[1]);
  copy.prepend(drawn("rect", { x: 0, y: -LINE, width: whole[0], height: whole[1], fill: "#ffffff" }));
  copy.append(...added);
  return new XMLSerializer().serializeToString(copy);
}

// Add the links to a page, or to one that a server has sent and that is not shown yet.
function addLinks(page) {
  for (const caption of page.querySelectorAll(".panels figcaption")) {
    const name = caption.textContent;
    caption.append(" ", link("save SVG", `save ${name} as SVG`, `${fileName(name)}.svg`));
  }
  page.querySelector(".legend")?.before(choice());
  for (const box of page.querySelectorAll(".wide")) {
    const name = box.getAttribute("aria-label");
    box.after(link("save CSV", `save ${name} as CSV`, `${fileName(name)}.csv`));
  }
}

const fileName = (name) => name.toLowerCase().match(/[\p{L}\p{N}]+/gu)?.join("-") ?? "curve";

function link(words, label, file) {
  const made = document.createElement("a");
  made.className = "save";
  made.textContent = words;
  made.setAttribute("aria-label", label);
  made.download = file;
  made.href = "#curves"; // filled in when it is followed, so that a page of many curves is not twice as large
  return made;
}

// The cells of a table as they are shown, quoted where a spreadsheet needs it.
function asCSV(table) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const line = (row) => [...row.cells].map((cell) => quoted(cell.textContent.trim())).join(",");
  return `${[...table.rows].map(line).join("\n")}\n`;
}

document.addEventListener("click", (event) => {
  const followed = event.target.closest("a.save");
  if (!followed) return;
  const figure = followed.closest("figure");
  const name = figure?.querySelector("figcaption").firstChild.textContent;
  const [text, type] = figure
    ? [saved(figure.querySelector("svg"), name), "image/svg+xml"]
    : [asCSV(followed.previousElementSibling.querySelector("table")), "text/csv"];
  if (followed.href.startsWith("blob:")) URL.revokeObjectURL(followed.href);
  followed.href = URL.createObjectURL(new Blob([text], { type }));
});

// ---- another horizontal axis, and values under the pointer ----------------------------------------------------------

const UNITS = ["iteration", "environment steps", "minutes"]; // the columns of a run's clock
let unit = 0;

const numbers = (text) => text.split(/[\sL]+/).map(Number);
const scale = (svg) => {
  const [first, last, low, high, left] = svg.dataset.scale.split(" ").map(Number);
  return { first, last, low, high, left, right: 350, top: 18, bottom: 192 }; // as in curves.py
};

// The value of a clock's column at an iteration, on a line between the two iterations beside it.
function atTime(clock, iteration, column) {
  const after = clock.findIndex(([number]) => number >= iteration);
  if (after < 1) return clock.at(after)[column];
  const [before, next] = [clock[after - 1], clock[after]];
  const part = (iteration - before[0]) / (next[0] - before[0]);
  return before[column] + part * (next[column] - before[column]);
}

function ticks(low, high) {
  if (low === high) return [low];
  const power = 10 ** Math.floor(Math.log10((high - low) / 4));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= (high - low) / 5);
  const found = [];
  for (let value = Math.ceil(low / size) * size; value <= high; value += size) found.push(value);
  return found;
}

// Draw the curves over another unit, from what the page has of them by iteration.
function drawOver(page) {
  const clocks = JSON.parse(page.getElementById("clocks")?.textContent ?? "{}");
  for (const svg of page.querySelectorAll("#curves svg")) {
    if (svg.querySelector(".unit").textContent === "step") continue;
    const { first, last, left, right } = scale(svg);
    const iteration = (x) => first + ((x - left) / (right - left)) * (last - first);
    const groups = [...svg.querySelectorAll("g")];
    for (const path of svg.querySelectorAll("g path")) path.dataset.d ??= path.getAttribute("d");
    for (const mark of svg.querySelectorAll(".lesson, .lesson + text")) mark.toggleAttribute("hidden", unit > 0);
    const written = [...svg.querySelectorAll(".tick")].map((each) => [each.getAttribute("x"), each.textContent]);
    svg.dataset.ticks ??= JSON.stringify(written);
    const known = groups.filter((group) => clocks[group.dataset.run]?.length);
    const at = (group, x) => atTime(clocks[group.dataset.run], iteration(x), unit);
    const ends = known.flatMap((group) => {
      const places = numbers(group.lastElementChild.dataset.d.slice(1));
      return [at(group, places[0]), at(group, places.at(-2))];
    });
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    const width = (right - left) / (high - low || 1);
    svg.dataset.range = unit ? `${low} ${high}` : `${first} ${last}`;
    for (const group of groups) {
      group.toggleAttribute("hidden", unit > 0 && !known.includes(group));
      for (const path of group.querySelectorAll("path")) {
        const given = path.dataset.d;
        const places = numbers(given.slice(1).replace("Z", ""));
        for (let place = 0; unit && known.includes(group) && place < places.length; place += 2)
          places[place] = (left + (at(group, places[place]) - low) * width).toFixed(1);
        const pairs = places.reduce((made, each, place) => (place % 2 ? `${made} ${each}` : `${made}L${each}`), "");
        path.setAttribute("d", unit ? `M${pairs.slice(1)}${given.endsWith("Z") ? "Z" : ""}` : given);
      }
    }
    for (const tick of svg.querySelectorAll(".tick")) tick.remove();
    const shown = unit
      ? ticks(low, high).map((value) => [left + (value - low) * width, value.toLocaleString("en")])
      : JSON.parse(svg.dataset.ticks);
    const middles = { class: "tick", y: 207, "text-anchor": "middle" };
    const name = svg.querySelector(".unit");
    const edge = svg.viewBox.baseVal.width;
    const within = (x, text) => (unit ? Math.min(x, edge - 3.6 * text.length) : x);
    name.before(...shown.map(([x, text]) => drawn("text", { ...middles, x: within(x, text) }, text)));
    name.textContent = UNITS[unit];
  }
}

function choice() {
  const made = document.createElement("select");
  made.id = "unit";
  made.setAttribute("aria-label", "Horizontal axis");
  made.append(...UNITS.map((name, place) => new Option(`by ${name}`, place)));
  return made;
}

document.addEventListener("input", ({ target }) => {
  if (target.id !== "unit") return;
  unit = Number(target.value);
  drawOver(document);
});

const tip = document.createElement("output");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
const MOST = 8; // runs whose values are shown at once

document.addEventListener("pointermove", (event) => {
  const svg = event.target.closest("#curves svg");
  tip.hidden = !svg;
  if (!svg) return;
  const box = svg.getBoundingClientRect();
  const { first, last, low, high, left, right, top, bottom } = scale(svg);
  const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
  const [from, to] = (svg.dataset.range ?? `${first} ${last}`).split(" ").map(Number);
  const lines = [...svg.querySelectorAll("g:not([hidden])")].map((group) => {
    const places = numbers(group.lastElementChild.getAttribute("d").slice(1));
    let near = 0;
    for (let place = 2; place < places.length; place += 2)
      if (Math.abs(places[place] - x) < Math.abs(places[near] - x)) near = place;
    const value = low + ((bottom - places[near + 1]) / (bottom - top)) * (high - low);
    const shown = "fraction" in svg.dataset ? `${(100 * value).toFixed(1)} %` : String(Number(value.toPrecision(3)));
    return { at: places[near], text: `${group.querySelector("title").textContent}: ${shown}` };
  });
  if (!lines.length) return;
  const nearest = lines.reduce((best, line) => (Math.abs(line.at - x) < Math.abs(best.at - x) ? line : best));
  const exact = from + ((nearest.at - left) / (right - left)) * (to - from);
  const at = unit === 2 ? Number(exact.toFixed(2)) : Math.round(exact);
  const more = lines.length > MOST ? [`and ${lines.length - MOST} more`] : [];
  const texts = lines.slice(0, MOST).map(({ text }) => text);
  tip.textContent = [`${svg.querySelector(".unit").textContent} ${at.toLocaleString("en")}`, ...texts, ...more].join("\n");
  tip.style.left = `${Math.max(0, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${event.clientY + 14}px`;
});

addLinks(document);
