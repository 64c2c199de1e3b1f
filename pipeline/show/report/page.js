"use strict";
// The page is whole without this script. It adds what a reader may want to do with it: see a step's
// card, look up values along a curve, change an axis, sort and save tables, search samples. Texts
// are only ever set as text.

const make = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const numbers = (text) => text.split(" ").map(Number);
const short = (value) => String(Number(value.toPrecision(4)));
const MOST_READ = 12; // the most values at one place that are written beside a plot
const choices = new Map(); // what a reader has chosen, by where; it outlives a refreshed page

// --- steps: a box of the graph shows its card when pointed at, focused or tapped

const setUpGraph = (root) => {
  const inspector = root.querySelector("#inspector");
  const boxes = root.querySelectorAll(".dag a");
  const show = (box) => {
    const card = document.querySelector(box.getAttribute("href") + " .card");
    const title = make("h3", { textContent: box.getAttribute("aria-label") });
    inspector.replaceChildren(title, card.cloneNode(true));
    boxes.forEach((other) => other.removeAttribute("aria-current"));
    box.setAttribute("aria-current", "true");
  };
  boxes.forEach((box) => {
    box.addEventListener("pointerenter", () => show(box));
    box.addEventListener("focus", () => show(box));
    box.addEventListener("click", (event) => {
      event.preventDefault();
      show(box);
    });
  });
};

// --- curves

// Bias-corrected exponential moving average, as TensorBoard and W&B smooth.
const smoothed = (values, weight) => {
  let sum = 0, total = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
};

class Plot {
  constructor(svg, names, axis) {
    this.svg = svg;
    this.names = names;
    this.axis = axis;
    [this.left, this.right, this.bottom, this.top] = numbers(svg.dataset.frame);
    this.frames = new Map([...svg.querySelectorAll("[data-axes]")].map((axes) => [axes.dataset.axes, axes]));
    this.lines = [...svg.querySelectorAll("polyline[data-series]")].map((drawn) => ({
      drawn, series: drawn.dataset.series, x: numbers(drawn.dataset.x), y: numbers(drawn.dataset.y),
    }));
    this.lookUp();
  }

  across(at) {
    const [low, high] = this.ends;
    return this.left + ((at - low) / (high - low)) * (this.right - this.left);
  }

  draw({ log, smoothing, hidden }) {
    const isLog = log && this.frames.has("logarithmic");
    const axes = this.frames.get(isLog ? "logarithmic" : "linear");
    this.frames.forEach((other) => other.setAttribute("display", other === axes ? "inline" : "none"));
    this.ends = numbers(axes.dataset.x);
    const scale = isLog ? Math.log10 : (value) => value;
    const [low, high] = numbers(axes.dataset.y).map(scale);
    this.up = (value) => this.bottom + ((scale(value) - low) / (high - low)) * (this.top - this.bottom);
    for (const line of this.lines) {
      const place = (x, y) => `${this.across(x).toFixed(1)},${this.up(y).toFixed(1)}`;
      const places = (ys) => [...line.x.map((x, i) => place(x, ys[i])), place(line.x.at(-1), ys.at(-1))].join(" ");
      line.isHidden = hidden.has(line.series);
      line.smooth = smoothing > 0 ? smoothed(line.y, smoothing) : null;
      line.drawn.setAttribute("display", line.isHidden ? "none" : "inline");
      line.drawn.setAttribute("points", places(line.smooth || line.y));
      line.raw?.remove();
      if (line.smooth && !line.isHidden) {
        line.raw = line.drawn.cloneNode();
        line.raw.setAttribute("points", places(line.y));
        line.raw.setAttribute("opacity", "0.25");
        line.raw.removeAttribute("data-series");
        line.drawn.before(line.raw);
      }
    }
  }

  // The values at one place, by pointer or with the arrow keys.
  lookUp() {
    const drawing = this.svg.closest(".drawing");
    const readout = make("output", { className: "readout" });
    const rule = document.createElementNS(this.svg.namespaceURI, "line");
    rule.setAttribute("class", "rule");
    rule.setAttribute("y1", this.top);
    rule.setAttribute("y2", this.bottom);
    drawing.append(readout);
    drawing.setAttribute("role", "group");
    drawing.tabIndex = 0;
    let index = -1;
    const places = [...new Set(this.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const show = (at, height) => {
      index = Math.max(0, Math.min(places.length - 1, at));
      const x = places[index];
      const there = this.lines.filter((line) => !line.isHidden && line.x.includes(x));
      const far = (line) => Math.abs(this.up((line.smooth || line.y)[line.x.indexOf(x)]) - height);
      const near = there.length > MOST_READ && height !== undefined ? there.toSorted((a, b) => far(a) - far(b)) : there;
      const found = near.slice(0, MOST_READ).map((line) => {
        const i = line.x.indexOf(x);
        const key = make("i");
        key.style.background = line.drawn.style.stroke;
        const smooth = line.smooth ? ` (smoothed ${short(line.smooth[i])})` : "";
        return make("div", {}, key, `${short(line.y[i])}${smooth} ${this.names.get(line.series) ?? ""}`);
      });
      if (there.length > MOST_READ) found.push(make("div", { textContent: `and ${there.length - MOST_READ} more` }));
      readout.replaceChildren(make("b", { textContent: `${this.axis} ${short(x)}` }), ...found);
      rule.setAttribute("x1", this.across(x));
      rule.setAttribute("x2", this.across(x));
      this.svg.append(rule);
    };
    const hide = () => {
      readout.replaceChildren();
      rule.remove();
    };
    drawing.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * this.svg.viewBox.baseVal.width;
      const y = ((event.clientY - box.top) / box.height) * this.svg.viewBox.baseVal.height;
      const far = places.map((place) => Math.abs(this.across(place) - x));
      show(far.indexOf(Math.min(...far)), y);
    });
    drawing.addEventListener("pointerleave", hide);
    drawing.addEventListener("blur", hide);
    drawing.addEventListener("focus", () => {
      if (drawing.matches(":focus-visible")) show(index < 0 ? places.length - 1 : index);
    });
    drawing.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: places.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      show(to);
    });
  }
}

const setUpCurves = (group) => {
  const entries = [...group.querySelectorAll(".legend li")];
  const names = new Map(entries.map((entry) => [entry.dataset.series, entry.textContent.trim()]));
  const plots = [...group.querySelectorAll("svg[data-frame]")].map((svg) => new Plot(svg, names, group.dataset.axis));
  const where = `curves ${group.dataset.title}`;
  const chosen = choices.get(where) || { log: false, smoothing: 0, hidden: new Set() };
  choices.set(where, chosen);
  const draw = () => plots.forEach((plot) => plot.draw(chosen));
  for (const entry of entries) {
    const { series } = entry.dataset;
    const box = make("input", { type: "checkbox", checked: !chosen.hidden.has(series) });
    box.addEventListener("change", () => {
      chosen.hidden[box.checked ? "delete" : "add"](series);
      draw();
    });
    const label = make("label");
    label.append(box, ...entry.childNodes);
    entry.replaceChildren(label);
  }
  const tools = make("div", { className: "tools" });
  if (entries.length > MOST_READ) {
    const boxes = entries.map((entry) => entry.querySelector("input"));
    const button = make("button", { type: "button", className: "save", textContent: "Show all or none" });
    button.addEventListener("click", () => {
      const all = boxes.every((box) => !box.checked);
      boxes.forEach((box) => { box.checked = all; });
      chosen.hidden = new Set(all ? [] : entries.map((entry) => entry.dataset.series));
      draw();
    });
    tools.append(button);
  }
  if (plots.some((plot) => plot.frames.has("logarithmic"))) {
    const box = make("input", { type: "checkbox", checked: chosen.log });
    box.addEventListener("change", () => {
      chosen.log = box.checked;
      draw();
    });
    tools.append(make("label", {}, box, "logarithmic where all values are above 0"));
  }
  if (group.dataset.smooth && plots.some((plot) => plot.lines.some((line) => line.x.length > 3))) {
    const slider = make("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: chosen.smoothing });
    slider.addEventListener("input", () => {
      chosen.smoothing = Number(slider.value);
      draw();
    });
    tools.append(make("label", {}, "smoothing", slider));
  }
  if (tools.children.length) group.querySelector(".panels").before(tools);
  draw();
};

// --- tables

// The numbers of a cell with all their digits, or its text.
const valuesOf = (cell) => {
  const data = [...cell.querySelectorAll("data")];
  return data.length ? data.map((one) => one.value) : [cell.innerText.trim()];
};

const setUpSorting = (table) => {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = make("button", { type: "button", className: "sort" });
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      const key = (row) => valuesOf(row.cells[column])[0];
      const isNumber = (text) => text !== "" && !Number.isNaN(Number(text));
      const rank = (text) => (isNumber(text) ? 0 : text && text !== "–" ? 1 : 2); // nothing comes last
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (rank(a) !== rank(b)) return rank(a) - rank(b);
        return sign * (isNumber(a) ? Number(a) - Number(b) : a.localeCompare(b));
      });
      body.append(...rows);
      table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    });
  });
};

// A text that a spreadsheet would take for a formula is led by an apostrophe.
const field = (text) => {
  const plain = Number.isNaN(Number(text)) && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
};

const csvOf = (table) => {
  const rows = [...table.rows].filter((row) => !row.classList.contains("section"));
  const cells = rows.map((row) => [...row.cells].map(valuesOf));
  const widths = cells[0].map((_, column) => Math.max(...cells.map((row) => (row[column] || []).length)));
  const ends = ["", " low", " high"];
  const lines = cells.map((row, at) =>
    widths.flatMap((width, column) =>
      Array.from({ length: width }, (_, i) =>
        field(at === 0 ? `${row[column][0].replaceAll("\n", " ")}${ends[i] ?? ""}` : (row[column][i] ?? "")))));
  return lines.map((line) => line.join(",") + "\r\n").join("");
};

const setUpSaving = (table) => {
  const button = make("button", { type: "button", className: "save", textContent: "Save as CSV" });
  button.setAttribute("aria-label", `Save as CSV: ${table.dataset.file}`);
  button.addEventListener("click", () => {
    const url = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
    const file = table.dataset.file.replace(/[^\w.-]+/g, "_").slice(0, 80);
    make("a", { href: url, download: `${file}.csv` }).click();
    URL.revokeObjectURL(url);
  });
  table.parentElement.after(button);
};

// --- runs: those that are chosen are shown side by side

const setUpComparing = (table) => {
  const chosen = choices.get("runs") || new Set();
  choices.set("runs", chosen);
  const button = make("button", { type: "button", className: "save" });
  const told = () => {
    button.hidden = chosen.size < 2;
    button.textContent = `Compare ${chosen.size} runs`;
  };
  for (const link of table.querySelectorAll("tbody th a")) {
    const name = link.getAttribute("href");
    const box = make("input", { type: "checkbox", checked: chosen.has(name) });
    box.setAttribute("aria-label", `Compare ${name}`);
    box.addEventListener("change", () => {
      chosen[box.checked ? "add" : "delete"](name);
      told();
    });
    link.before(box, " ");
  }
  button.addEventListener("click", () => location.assign([...chosen].join("+")));
  told();
  return button;
};

// --- what is searched: samples, and runs

const setUpSearch = (section, items, question) => {
  const where = question;
  const input = make("input", { type: "search", value: choices.get(where) || "" });
  const count = make("output", { className: "muted small" });
  const search = () => {
    choices.set(where, input.value);
    const wanted = input.value.toLowerCase();
    const all = [...section.querySelectorAll(items)];
    all.forEach((one) => { one.hidden = !one.textContent.toLowerCase().includes(wanted); });
    const found = all.filter((one) => !one.hidden);
    if (wanted) found.forEach((one) => one.closest("details")?.setAttribute("open", ""));
    count.textContent = wanted ? `${found.length} of ${all.length}` : "";
  };
  input.addEventListener("input", search);
  if (input.value) search();
  return make("div", { className: "tools" }, make("label", {}, question, input), count);
};

// --- the whole page

const setUp = (root) => {
  if (root.querySelector("#inspector")) setUpGraph(root);
  root.querySelectorAll(".curves").forEach(setUpCurves);
  root.querySelectorAll("table[data-file]").forEach(setUpSaving);
  root.querySelectorAll("table.sortable").forEach(setUpSorting);
  root.querySelectorAll("#samples > h2").forEach((heading) =>
    heading.after(setUpSearch(heading.parentElement, ".sample", "Search prompts and answers")));
  root.querySelectorAll("table.runs").forEach((table) => {
    const tools = setUpSearch(table, "tbody tr", "Filter runs");
    tools.append(setUpComparing(table));
    table.parentElement.before(tools);
  });
};

// A link to a step opens it.
const open = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
};

// A page of `temper ui` asks for its next state, and puts it in its place unless somebody is about
// to type or to choose something there.
const refreshed = async (tag) => {
  const status = document.getElementById("live");
  let answer;
  try {
    answer = await fetch(location.pathname, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
  } catch {
    status.textContent = "not connected";
    return tag;
  }
  if (answer.status >= 400) {
    status.textContent = `not up to date: ${await answer.text()}`;
    return tag;
  }
  status.textContent = "live";
  const busy = document.activeElement?.closest?.("main, header") && document.activeElement.matches("input, button");
  if (answer.status !== 200 || busy) return tag;
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  const opened = (page) => [...page.querySelectorAll("main details")];
  const name = (details) => details.id || details.querySelector("summary").textContent;
  const unfolded = new Map(opened(document).map((details) => [name(details), details.open]));
  opened(next).forEach((details) => { details.open = unfolded.get(name(details)) ?? details.open; });
  const regions = (page) => [...page.querySelectorAll("main [role=region], main .dag")];
  const label = (region) => region.getAttribute("aria-label") ?? region.className;
  const places = new Map(regions(document).map((r) => [label(r), [r.scrollLeft, r.scrollTop]]));
  for (const part of ["header", "main"]) {
    document.querySelector(part).replaceWith(document.adoptNode(next.querySelector(part)));
  }
  document.getElementById("live").textContent = "live";
  setUp(document.querySelector("main"));
  regions(document).forEach((region) => region.scrollTo(...(places.get(label(region)) ?? [0, 0])));
  if (!next.documentElement.hasAttribute("data-live")) delete document.documentElement.dataset.live;
  return answer.headers.get("ETag");
};

const follow = async () => {
  let tag = "";
  while ("live" in document.documentElement.dataset) {
    await new Promise((resolve) => setTimeout(resolve, 2000));
    if (!document.hidden) tag = await refreshed(tag);
  }
};

addEventListener("hashchange", open);
setUp(document);
open();
follow();
