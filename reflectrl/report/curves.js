// A link at each learning curve that saves it as an SVG file of its own, with its name, its legend and all its styles.
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

for (const figure of document.querySelectorAll(".panels figure")) {
  const caption = figure.querySelector("figcaption");
  const name = caption.textContent;
  const link = document.createElement("a");
  link.textContent = "save SVG";
  link.setAttribute("aria-label", `save ${name} as SVG`);
  link.download = `${name.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-")}.svg`;
  link.href = "#curves"; // filled in when it is followed, so that a page of many curves is not twice as large
  link.addEventListener("click", () => {
    if (link.href.startsWith("blob:")) URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob([saved(figure.querySelector("svg"), name)], { type: "image/svg+xml" }));
  });
  caption.append(" ", link);
}
