// Links that save a learning curve as an SVG file of its own, with its name, its legend and all its styles, and a table
// as CSV.
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
  for (const attribute of ["role", "aria-label"]) copy.removeAttribute(attribute);
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
  for (const box of page.querySelectorAll(".wide")) {
    const name = box.getAttribute("aria-label");
    box.after(link("save CSV", `save ${name} as CSV`, `${fileName(name)}.csv`));
  }
}

const fileName = (name) => name.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-");

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

addLinks(document);
