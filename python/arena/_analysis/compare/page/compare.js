// Live and reserved bytes of every run in one line chart. Redrawn when the width changes; colours come from the style sheet.
"use strict";

(() => {
  const { runs } = JSON.parse(document.getElementById("data").textContent);
  const place = document.getElementById("lines"), details = document.getElementById("lines-details");
  const HEIGHT = 420, TOP = 10, BOTTOM = 52, LEFT = 76, RIGHT = 14 + 12 * runs.length;
  let chosen = null; // the selected place on the axis, or null

  function size(bytes) {
    for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (bytes >= scale) return `${Number((bytes / scale).toFixed(2))} ${unit}`;
    }
    return `${bytes} B`;
  }

  function node(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const axisOf = () => document.querySelector("input[name=axis]:checked").value;
  const highest = (of) => Math.max(...runs.map((run) => of(run).reduce((a, b) => Math.max(a, b), 0))) || 1;
  const spanOf = (axis) => (axis === "share" ? 1 : highest((run) => run.seconds));

  function bytesTicks(most) { // bytes are counted in powers of two
    const step = 2 ** Math.max(0, Math.ceil(Math.log2(most / 6)));
    return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
  }

  function axisTicks(axis, span, room) { // 1, 2 or 5 times a power of ten
    if (axis === "share") return (room > 500 ? [0, 0.2, 0.4, 0.6, 0.8, 1] : [0, 0.5, 1]).map((at) => [at, `${Math.round(100 * at)} %`]);
    const least = span / Math.max(2, room / 90), power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= least);
    return Array.from({ length: Math.floor(span / step) + 1 }, (_, i) => [i * step, String(Number((i * step).toPrecision(6)))]);
  }

  function path(xs, ys, x, y) { // each value holds until the next
    let text = "";
    xs.forEach((at, i) => { text += i ? `H${x(at).toFixed(1)}V${y(ys[i]).toFixed(1)}` : `M${x(at).toFixed(1)},${y(ys[i]).toFixed(1)}`; });
    return text;
  }

  function drawAxes(svg, { axis, width, span, most, x, y }) {
    for (const bytes of bytesTicks(most)) {
      svg.append(node("line", { x1: LEFT, x2: width - RIGHT, y1: y(bytes), y2: y(bytes), stroke: "var(--edge)" }));
      svg.append(node("text", { class: "ytick", x: LEFT - 8, y: y(bytes) + 4, "text-anchor": "end" }, size(bytes)));
    }
    for (const [at, words] of axisTicks(axis, span, width - LEFT - RIGHT)) {
      svg.append(node("text", { class: "xtick", x: x(at), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, words));
    }
    const title = axis === "share" ? "share of the events" : "seconds of the recorded run";
    svg.append(node("text", { class: "xtitle", x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 10, "text-anchor": "middle" }, title));
  }

  function drawRun(svg, run, number, { axis, span, most, x, y }) {
    const line = { class: "run", fill: "none", stroke: `var(--${run.colour})` };
    svg.append(node("path", { ...line, d: path(run[axis], run.reserved, x, y), "stroke-width": 2 }));
    svg.append(node("path", { ...line, d: path(run[axis], run.live, x, y), "stroke-width": 1.5, "stroke-dasharray": "2 3" }));
    if (!run.reserved.length) return;
    const endX = run[axis].at(-1), endY = run.reserved.at(-1);
    if (!run.fits) {
      const cross = `M${x(endX) - 5},${y(endY) - 5}l10,10m0,-10l-10,10`;
      svg.append(node("path", { class: "cross", d: cross, stroke: `var(--${run.colour})`, "stroke-width": 3 }));
    }
    const isNear = (other) => other.reserved.length && Math.abs(other[axis].at(-1) - endX) < 0.02 * span && Math.abs(other.reserved.at(-1) - endY) < 0.05 * most;
    const shift = (run.fits ? 4 : 9) + 12 * runs.slice(0, number).filter(isNear).length; // colours alone are not enough
    svg.append(node("text", { class: "letter", x: x(endX) + shift, y: y(endY) + 4, "font-weight": 700, style: `fill:var(--${run.colour})` }, run.letter));
  }

  function draw() {
    const axis = axisOf(), width = Math.max(280, place.clientWidth), span = spanOf(axis);
    const most = highest((run) => run.reserved);
    const x = (at) => LEFT + (at / span) * (width - LEFT - RIGHT);
    const y = (bytes) => TOP + (1 - bytes / (most * 1.06)) * (HEIGHT - TOP - BOTTOM);
    const view = { axis, width, span, most, x, y };
    const svg = node("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" });
    drawAxes(svg, view);
    runs.forEach((run, number) => drawRun(svg, run, number, view));
    if (chosen !== null) svg.append(node("line", { class: "chosen", x1: x(chosen), x2: x(chosen), y1: TOP, y2: HEIGHT - BOTTOM, stroke: "var(--text)" }));
    place.replaceChildren(svg);
    showDetails(axis);
  }

  function at(run, axis) { // the last sample up to the selected place; none if the run ended before
    if (!run[axis].length || chosen > run[axis].at(-1)) return -1;
    let low = 0, high = run[axis].length - 1;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (run[axis][middle] <= chosen) low = middle; else high = middle - 1;
    }
    return low;
  }

  function showDetails(axis) {
    details.hidden = chosen === null;
    if (chosen === null) return;
    const head = document.createElement("b"), list = document.createElement("ul");
    head.textContent = axis === "share" ? `${(100 * chosen).toFixed(1)} % of the events` : `${chosen.toFixed(3)} s`;
    for (const run of runs) {
      const i = at(run, axis), entry = document.createElement("li");
      entry.textContent = i < 0 ? `${run.letter}: ended before` : `${run.letter}: ${size(run.live[i])} live, ${size(run.reserved[i])} reserved`;
      list.append(entry);
    }
    details.replaceChildren(head, list);
  }

  function choose(value) {
    chosen = Math.min(spanOf(axisOf()), Math.max(0, value));
    draw();
  }

  place.addEventListener("pointermove", (event) => {
    const box = place.getBoundingClientRect(), room = box.width - LEFT - RIGHT;
    choose(((event.clientX - box.left - LEFT) / room) * spanOf(axisOf()));
  });
  place.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -0.01, ArrowRight: 0.01 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose((chosen ?? 0) + step * spanOf(axisOf()));
  });
  for (const input of document.querySelectorAll("input[name=axis]")) {
    input.addEventListener("change", () => { chosen = null; draw(); });
  }
  new ResizeObserver(draw).observe(place);
  draw();
  document.documentElement.dataset.drawn = Math.round(performance.now()); // the tests look at this
})();
