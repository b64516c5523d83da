// The account over time: reserved bytes stacked by reason, with the cap and the peak. Drawn on a canvas; the legend below
// shows the figures of the selected moment.
"use strict";

(() => {
  const { data, size, last, pattern } = arenaPage;
  const box = document.getElementById("timeline");
  if (!box) return; // the report has no timeline
  const { unit, at, figures, peak, failed, shown } = data.timeline;
  const REASONS = data.reasons; // from the bottom to the top
  const HEIGHT = 250, TOP = 34, BOTTOM = 24, STEP = 20;
  const canvas = box.querySelector("canvas"), pen = canvas.getContext("2d");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const begin = at[0], length = at[at.length - 1] - begin || 1;
  const end = at.length - 1;
  const most = Math.max(1, ...figures.reserved), cap = Math.max(...figures.cap);
  const showsCap = cap <= 1.6 * most; // a cap far above would squash everything below it
  const whole = (showsCap ? cap : most) * 1.04;
  const tops = []; // for each reason, the bytes up to and including it
  REASONS.forEach((name, r) => tops.push(figures[name].map((bytes, i) => bytes + (r ? tops[r - 1][i] : 0))));
  let chosen = shown, fills = {}, gutter = 0, width = 0;

  const x = (i) => gutter + ((at[i] - begin) / length) * width;
  const y = (bytes) => TOP + (1 - bytes / whole) * (HEIGHT - TOP - BOTTOM);

  function instant(value) {
    if (unit === "events") return `event ${Math.round(value).toLocaleString("en")}`;
    if (value >= 3600) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
    if (value >= 60) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
    for (const [name, scale] of [["s", 1], ["ms", 1e3]]) {
      if (value * scale >= 1) return `${Number((value * scale).toPrecision(3))} ${name}`;
    }
    return `${Number((value * 1e6).toPrecision(3))} µs`;
  }

  // --- drawing

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    fills = { page: colour("page"), text: colour("text"), quiet: colour("quiet"), edge: colour("edge"), failed: colour("stranded") };
    fills.requested = colour("requested");
    for (const name of REASONS.slice(1)) fills[name] = pattern(name, colour(name), colour("stripe"));
  }

  function trace(values) { // each value holds until the next
    pen.lineTo(x(0), y(values[0]));
    for (let i = 1; i <= end; i++) {
      pen.lineTo(x(i), y(values[i - 1]));
      pen.lineTo(x(i), y(values[i]));
    }
  }

  function drawAreas() {
    for (let r = REASONS.length - 1; r >= 0; r--) { // each is painted over those above it
      pen.beginPath();
      pen.moveTo(x(0), y(0));
      trace(tops[r]);
      pen.lineTo(x(end), y(0));
      pen.fillStyle = fills.page;
      pen.fill();
      pen.fillStyle = fills[REASONS[r]];
      pen.fill();
    }
  }

  function label(text, left, top, align, colour) {
    pen.textAlign = align;
    pen.fillStyle = colour;
    pen.fillText(text, left, top);
  }

  function drawScale() { // bytes are counted in powers of two
    const step = 2 ** Math.ceil(Math.log2(whole / 5));
    pen.strokeStyle = fills.edge;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let bytes = 0; bytes <= whole; bytes += step) {
      pen.moveTo(gutter, Math.round(y(bytes)) + 0.5);
      pen.lineTo(gutter + width, Math.round(y(bytes)) + 0.5);
      label(size(bytes), gutter - 6, y(bytes) + 4, "right", fills.quiet);
    }
    pen.stroke();
    const parts = width < 500 ? 2 : 4;
    for (let part = 0; part <= parts; part++) {
      const align = part === 0 ? "left" : part === parts ? "right" : "center";
      label(instant(begin + (length * part) / parts), gutter + (width * part) / parts, HEIGHT - 6, align, fills.quiet);
    }
  }

  function drawCap() {
    const [side, align] = (at[peak] - begin) / length > 0.5 ? [gutter, "left"] : [gutter + width, "right"]; // off the peak
    if (!showsCap) {
      label(`cap ${size(cap)}, off the chart`, side, TOP - 8, align, fills.text);
      return;
    }
    pen.strokeStyle = fills.text;
    pen.lineWidth = 1.5;
    pen.setLineDash([6, 4]);
    pen.beginPath();
    trace(figures.cap);
    pen.stroke();
    pen.setLineDash([]);
    label(`cap ${size(cap)}`, side, y(cap) - 5, align, fills.text);
  }

  function upright(i, colour, line) {
    pen.strokeStyle = colour;
    pen.lineWidth = line;
    pen.beginPath();
    pen.moveTo(x(i), TOP);
    pen.lineTo(x(i), y(0));
    pen.stroke();
  }

  function drawMarks() {
    if (failed) upright(end, fills.failed, 4);
    upright(chosen, fills.page, 4);
    upright(chosen, fills.text, 1.5);
    const left = Math.min(gutter + width - 7, Math.max(gutter + 7, x(peak))), top = y(figures.live[peak]);
    pen.fillStyle = fills.text;
    pen.strokeStyle = fills.page;
    pen.lineWidth = 3;
    pen.beginPath(); // a mark on top of the live bytes
    pen.moveTo(x(peak), top);
    pen.lineTo(left - 7, top - 12);
    pen.lineTo(left + 7, top - 12);
    pen.closePath();
    pen.stroke();
    pen.fill();
    const text = `▼ peak, ${size(figures.live[peak])} live`, half = pen.measureText(text).width / 2;
    label(text, Math.min(gutter + width - half, Math.max(gutter + half, x(peak))), 12, "center", fills.text);
  }

  function draw() {
    const scale = devicePixelRatio || 1, all = Math.max(1, Math.floor(box.clientWidth));
    gutter = all < 520 ? 62 : 84;
    width = Math.max(1, all - gutter - 3);
    canvas.width = Math.round(all * scale);
    canvas.height = Math.round(HEIGHT * scale);
    canvas.style.height = `${HEIGHT}px`;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    drawScale();
    drawAreas();
    drawCap();
    drawMarks();
  }

  let waiting = false;
  function redraw() { // at most once per frame
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }

  // --- selecting a moment

  function choose(i) {
    chosen = Math.max(0, Math.min(end, i));
    const what = [];
    if (chosen === peak) what.push(", the peak of live bytes");
    if (failed && chosen === end) what.push(", where the request failed");
    document.getElementById("timeline-when").textContent = instant(at[chosen]) + what.join("");
    for (const place of document.querySelectorAll("[data-figure]")) {
      const bytes = figures[place.dataset.figure][chosen];
      place.textContent = size(bytes);
      place.title = `${bytes.toLocaleString("en")} bytes`;
    }
    redraw();
  }

  const point = (event) => {
    const share = (event.clientX - canvas.getBoundingClientRect().left - gutter) / width;
    const i = Math.max(0, last(at, begin + share * length)), next = Math.min(end, i + 1);
    choose(x(next) - gutter - share * width < 0.75 ? next : i); // a sample holds until the next one
  };
  box.addEventListener("pointermove", point);
  box.addEventListener("pointerdown", point);
  const keys = {
    ArrowLeft: () => chosen - 1,
    ArrowRight: () => chosen + 1,
    PageUp: () => chosen - STEP,
    PageDown: () => chosen + STEP,
    Home: () => 0,
    End: () => end,
    p: () => peak,
  };
  box.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(keys[event.key]());
  });

  readColours();
  choose(chosen);
  new ResizeObserver(redraw).observe(box);
  dark.addEventListener("change", () => {
    readColours();
    redraw();
  });
  arenaPage.timelineX = (i) => canvas.getBoundingClientRect().left + x(i); // where a sample is on the screen, for the tests
})();
