// The map: all segments one after the other, wrapped into rows like text; zooms from everything down to single blocks.
// It is drawn on a canvas column by column, so thousands of blocks cost no more than the columns of a screen.
"use strict";

(() => {
  const { data, size, last, pattern } = arenaPage;
  const { blocks, names, granule } = data;
  const WORDS = data.states, STATES = Object.keys(WORDS); // from the bottom of a column to its top
  const each = (value) => STATES.map(() => value);
  const HEIGHT = 22, GAP = 9, MOST_ROWS = 14, LEAST_SPAN = 4096;

  const box = document.getElementById("map");
  const canvas = box.querySelector("canvas");
  const tip = document.getElementById("map-tip");
  const details = document.getElementById("map-details");
  const range = document.getElementById("map-range");
  const choice = document.getElementById("map-segment");
  const pen = canvas.getContext("2d");

  // A place is an offset in bytes from the first segment, as if there were no addresses between segments.
  const segments = [];
  let total = 0;
  for (const [address, size] of data.segments) {
    segments.push({ address, size, place: total });
    total += size;
  }
  const many = blocks.address.length;
  const places = new Float64Array(many);
  const states = new Uint8Array(many);
  for (let i = 0, s = 0; i < many; i++) {
    while (s + 1 < segments.length && blocks.address[i] >= segments[s + 1].address) s++;
    places[i] = segments[s].place + blocks.address[i] - segments[s].address;
    states[i] = STATES.indexOf(names[blocks.state[i]]);
  }

  const rows = Math.max(1, Math.min(MOST_ROWS, Math.ceil(total / granule / 16)));
  const widest = Math.max(LEAST_SPAN, Math.ceil(total / rows / granule) * granule);
  let from = 0, span = widest; // the visible part: its first place, and the bytes per row
  let width = 0, gutter = 0, selected = -1, pointed = -1;

  // --- formatting

  function age(seconds) {
    if (seconds === null) return "unknown";
    if (seconds < 0.01) return "under 0.01 s";
    if (seconds < 60) return `${Number(seconds.toFixed(seconds < 10 ? 2 : 1))} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
    return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  }

  const hex = (address) => `0x${address.toString(16)}`;

  // --- where things are

  const begins = segments.map((segment) => segment.place);
  const end = (i) => places[i] + blocks.size[i];
  const shown = () => from + rows * span;
  const addressOf = (place) => {
    const segment = segments[Math.max(0, last(begins, place))];
    return segment.address + Math.floor(place - segment.place);
  };
  const firstAfter = (place) => { // the first block that ends after a place
    const i = last(places, place);
    return i >= 0 && end(i) > place ? i : i + 1;
  };

  function* strips(begin, finish) { // the rectangles of a range: one per row
    const lastRow = Math.min(rows - 1, Math.floor((finish - from - 1) / span));
    for (let row = Math.max(0, Math.floor((begin - from) / span)); row <= lastRow; row++) {
      const left = Math.max(0, ((begin - from) / span - row) * width);
      const right = Math.min(width, ((finish - from) / span - row) * width);
      yield { x: gutter + left, y: row * (HEIGHT + GAP) + 2, width: right - left };
    }
  }

  // --- drawing

  let fills = {};
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    fills = { page: colour("page"), text: colour("text"), quiet: colour("quiet"), hole: colour("hole") };
    fills.live = colour("requested");
    const stripe = colour("stripe");
    for (const state of STATES.slice(1)) fills[state] = pattern(state, colour(state), stripe);
  }

  function shares() { // for each column, the share of each state
    const columns = rows * width, bytes = span / width;
    const sums = new Float32Array(columns * STATES.length);
    for (let i = firstAfter(from); i < many && places[i] < shown(); i++) {
      const left = Math.max(0, (places[i] - from) / bytes), right = Math.min(columns, (end(i) - from) / bytes);
      for (let column = Math.floor(left); column < right; column++) {
        sums[column * STATES.length + states[i]] += Math.min(right, column + 1) - Math.max(left, column);
      }
    }
    return sums;
  }

  function heights(sums, column, into) { // in pixels; even the smallest share stays visible
    let sum = 0, largest = 0;
    for (let s = 0; s < STATES.length; s++) {
      const share = sums[column * STATES.length + s];
      into[s] = share > 0 ? Math.max(s ? 2 : 5, Math.round(share * HEIGHT)) : 0; // above all live blocks
      sum += into[s];
      if (into[s] > into[largest]) largest = s;
    }
    if (sum > HEIGHT) into[largest] -= sum - HEIGHT;
    return into;
  }

  function drawColumns() {
    const sums = shares();
    let stack = each(0), next = each(0);
    for (let row = 0; row < rows; row++) {
      const bottom = row * (HEIGHT + GAP) + 2 + HEIGHT;
      let begin = 0;
      heights(sums, row * width, stack);
      for (let x = 1; x <= width; x++) { // equal neighbours are drawn as one
        if (x < width) heights(sums, row * width + x, next);
        if (x < width && next.every((height, s) => height === stack[s])) continue;
        let y = bottom;
        for (let s = 0; s < STATES.length; s++) {
          if (!stack[s]) continue;
          y -= stack[s];
          pen.fillStyle = fills[STATES[s]];
          pen.fillRect(gutter + begin, y, x - begin, stack[s]);
        }
        begin = x;
        [stack, next] = [next, stack];
      }
    }
  }

  function drawEdges() { // between wide blocks, and where granules and segments begin
    const least = (5 * span) / width;
    pen.fillStyle = fills.page;
    for (let i = firstAfter(from); i < many && places[i] < shown(); i++) {
      if (blocks.size[i] < least || places[i] < from) continue;
      for (const strip of strips(places[i], places[i] + 1)) pen.fillRect(strip.x - 0.5, strip.y, 1, HEIGHT);
    }
    for (const segment of segments) {
      const finish = Math.min(segment.place + segment.size, shown());
      if (finish < from || segment.place >= shown()) continue;
      pen.fillStyle = fills.quiet;
      if ((granule / span) * width >= 5) {
        const skipped = Math.max(0, Math.ceil((from - segment.place) / granule));
        for (let place = segment.place + skipped * granule; place < finish; place += granule) {
          for (const strip of strips(place, place + 1)) pen.fillRect(strip.x, strip.y + HEIGHT + 1, 1, 3);
        }
      }
      pen.fillStyle = fills.text;
      if (segments.length > 1 && segment.place >= from) {
        for (const strip of strips(segment.place, segment.place + 1)) pen.fillRect(strip.x - 1, strip.y - 2, 2, HEIGHT + 6);
      }
    }
  }

  function drawLabels() {
    const digits = Math.max(0, Math.min(4, Math.ceil(Math.log10(2 ** 20 / span)) + 1));
    pen.fillStyle = fills.quiet;
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let row = 0; row < rows && from + row * span < total; row++) {
      const place = from + row * span, index = Math.max(0, last(begins, place));
      const offset = ((place - segments[index].place) / 2 ** 20).toFixed(digits);
      const label = (segments.length > 1 ? `${index + 1}: ` : "") + `${Number(offset).toLocaleString("en")} MiB`;
      pen.fillText(label, gutter - 8, row * (HEIGHT + GAP) + 2 + HEIGHT / 2, gutter - 10);
    }
  }

  function outline(i, line) {
    if (i < 0) return;
    for (const strip of strips(places[i], end(i))) {
      const wide = Math.max(3, strip.width);
      const x = Math.min(strip.x - (wide - strip.width) / 2, gutter + width - wide);
      pen.strokeStyle = fills.page; // keeps the outline visible on every colour
      pen.lineWidth = line + 3;
      pen.strokeRect(x, strip.y, wide, HEIGHT);
      pen.strokeStyle = fills.text;
      pen.lineWidth = line;
      pen.strokeRect(x, strip.y, wide, HEIGHT);
    }
  }

  function draw() {
    const scale = devicePixelRatio || 1, whole = Math.max(1, Math.floor(box.clientWidth)), tall = rows * (HEIGHT + GAP) + 4;
    gutter = whole < 520 ? 62 : 84;
    width = Math.max(1, whole - gutter - 3);
    if (canvas.width !== Math.round(whole * scale) || canvas.height !== Math.round(tall * scale)) {
      canvas.width = Math.round(whole * scale);
      canvas.height = Math.round(tall * scale);
      canvas.style.height = `${tall}px`;
    }
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, whole, tall);
    pen.fillStyle = fills.hole;
    for (const strip of strips(from, Math.min(total, shown()))) pen.fillRect(strip.x, strip.y, strip.width, HEIGHT);
    drawColumns();
    drawEdges();
    drawLabels();
    outline(pointed, 1.5);
    outline(selected, 3);
    const finish = Math.min(total, shown());
    range.textContent =
      `${hex(addressOf(from))} to ${hex(addressOf(finish - 1) + 1)}: ${size(finish - from)}, each row ${size(span)}`;
  }

  let waiting = false;
  function redraw() { // at most once per frame, no matter how many events there are
    if (waiting || !total) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }

  // --- moving

  function show(place, bytes) {
    span = Math.min(widest, Math.max(LEAST_SPAN, bytes));
    from = Math.max(0, Math.min(total - rows * span, place));
    redraw();
  }

  function zoom(factor, at) { // the place `at` stays where it is on the screen
    const row = (at - from) / span;
    const bytes = Math.min(widest, Math.max(LEAST_SPAN, span / factor));
    show(at - row * bytes, bytes);
  }

  const middle = () => (selected >= 0 ? (places[selected] + end(selected)) / 2 : from + (rows * span) / 2);

  function select(i) {
    if (!many) return;
    selected = Math.max(0, Math.min(many - 1, i));
    if (end(selected) <= from || places[selected] >= shown()) show(places[selected] - (rows * span) / 2, span);
    details.replaceChildren(describe(selected));
    redraw();
  }

  function zoomTo(i) { // the block fills about a quarter of a row
    const bytes = Math.min(widest, Math.max(LEAST_SPAN, 2 ** Math.round(Math.log2(blocks.size[i] * 4))));
    show(places[i] - (Math.floor((rows - 1) / 2) + 0.375) * bytes, bytes);
    select(i);
  }

  // --- describing blocks: names are untrusted, so they are only ever set as text

  function describe(i) {
    const list = document.createElement("dl"), count = blocks.count[i], state = names[blocks.state[i]];
    list.className = "block";
    const title = document.createElement("strong");
    const kind = state === "live" ? "live block" : `${state} piece`;
    title.textContent = count > 1 ? `${count.toLocaleString("en")} small ${kind}s, shown as one` : kind;
    list.append(title);
    const add = (name, words) => {
      const entry = document.createElement("div");
      const term = document.createElement("dt"), value = document.createElement("dd");
      term.textContent = name;
      value.textContent = words;
      value.dir = "auto";
      entry.append(term, value);
      list.append(entry);
    };
    add("Size", `${size(blocks.size[i])} (${blocks.size[i].toLocaleString("en")} bytes)`);
    if (state === "live") {
      const [unknown, none] = count > 1 ? ["several, or not traced", "several, or none"] : ["not traced", "none"];
      add("Age", (count > 1 && blocks.age[i] !== null ? "up to " : "") + age(blocks.age[i]));
      add("Line", names[blocks.line[i]] || unknown);
      add("Scope", names[blocks.scope[i]] || none);
      if (count === 1) add("Stream", names[blocks.stream[i]]);
    }
    add("State", WORDS[state]);
    add("Address", (count > 1 ? "near " : "") + hex(blocks.address[i]));
    return list;
  }

  function hit(event) { // the block under the pointer; if a column has many, the largest in the state drawn there
    const rect = canvas.getBoundingClientRect();
    const x = Math.floor(event.clientX - rect.left - gutter), y = event.clientY - rect.top - 2;
    const row = Math.floor(y / (HEIGHT + GAP)), up = HEIGHT - (y - row * (HEIGHT + GAP));
    if (x < 0 || x >= width || row < 0 || row >= rows) return { block: -1, place: null };
    const begin = from + (row + x / width) * span, finish = from + (row + (x + 1) / width) * span;
    const sums = new Float32Array(STATES.length), largest = each(-1);
    const part = (i) => Math.min(finish, end(i)) - Math.max(begin, places[i]);
    for (let i = firstAfter(begin); i < many && places[i] < finish; i++) {
      const s = states[i];
      sums[s] += part(i) / (finish - begin);
      if (largest[s] < 0 || part(i) > part(largest[s])) largest[s] = i;
    }
    const stack = heights(sums, 0, each(0));
    let top = 0, found = -1;
    for (let s = 0; s < STATES.length && found < 0; s++) {
      top += stack[s];
      if (stack[s] && up <= top) found = largest[s];
    }
    return { block: found, place: (begin + finish) / 2 };
  }

  function point(event) {
    const { block } = hit(event);
    if (block !== pointed) {
      pointed = block;
      redraw();
      if (block >= 0) tip.replaceChildren(describe(block));
    }
    tip.hidden = block < 0;
    if (block < 0) return;
    const beside = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
    const below = event.clientY + 16 + tip.offsetHeight > innerHeight ? event.clientY - 12 - tip.offsetHeight : event.clientY + 16;
    tip.style.left = `${Math.max(4, beside)}px`;
    tip.style.top = `${Math.max(4, below)}px`;
  }

  let pointer = null; // its position, if over the map
  function leave() {
    pointer = null;
    pointed = -1;
    tip.hidden = true;
    redraw();
  }

  // --- pointer and keys

  let drag = null;
  box.addEventListener("pointerdown", (event) => {
    if (event.button === 0) drag = { x: event.clientX, y: event.clientY, from, moved: false };
  });
  addEventListener("pointermove", (event) => {
    if (!drag) return;
    const right = event.clientX - drag.x, down = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(right, down) < 5) return;
    drag.moved = true;
    leave();
    show(drag.from - (right / width + down / (HEIGHT + GAP)) * span, span);
  });
  addEventListener("pointerup", (event) => {
    if (drag && !drag.moved && box.contains(event.target)) {
      const { block } = hit(event);
      if (block >= 0) select(block);
    }
    drag = null;
  });
  addEventListener("pointercancel", () => (drag = null));
  box.addEventListener("pointermove", (event) => {
    if (drag?.moved) return;
    pointer = { clientX: event.clientX, clientY: event.clientY };
    point(pointer);
  });
  box.addEventListener("pointerleave", leave);
  addEventListener("scroll", () => pointer && point(pointer), { passive: true });
  box.addEventListener("dblclick", (event) => {
    const { place } = hit(event);
    if (place !== null) zoom(4, place);
  });
  box.addEventListener("wheel", (event) => {
    const { place } = hit(event);
    if (place === null || !(event.ctrlKey || document.activeElement === box)) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.4 : 1 / 1.4, place);
  }, { passive: false });

  const keys = {
    ArrowRight: () => select(selected + 1),
    ArrowLeft: () => select(selected - 1),
    ArrowDown: () => select(last(places, middle() + span)),
    ArrowUp: () => select(last(places, Math.max(0, middle() - span))),
    Home: () => select(0),
    End: () => select(many - 1),
    Enter: () => selected >= 0 && zoomTo(selected),
    "+": () => zoom(2, middle()),
    "=": () => zoom(2, middle()),
    "-": () => zoom(0.5, middle()),
    0: () => show(0, widest),
  };
  box.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  box.addEventListener("focus", () => {
    if (selected < 0 && box.matches(":focus-visible")) select(firstAfter(from));
  });
  document.getElementById("map-in").addEventListener("click", () => zoom(2, middle()));
  document.getElementById("map-out").addEventListener("click", () => zoom(0.5, middle()));
  document.getElementById("map-whole").addEventListener("click", () => show(0, widest));
  for (const button of document.querySelectorAll("button[data-address]")) {
    button.addEventListener("click", () => {
      const i = last(blocks.address, Number(button.dataset.address));
      if (i < 0) return;
      zoomTo(i);
      box.scrollIntoView({ block: "center" });
      box.focus();
    });
  }

  if (segments.length > 1) {
    choice.append(new Option("all", ""));
    segments.forEach((segment, index) => {
      choice.append(new Option(`${index + 1}: ${hex(segment.address)}, ${size(segment.size)}`, index));
    });
    choice.addEventListener("change", () => {
      const segment = segments[choice.value];
      if (choice.value === "") show(0, widest);
      else show(segment.place, segment.size / rows);
    });
    document.getElementById("map-choice").hidden = false;
  }

  if (total) {
    readColours();
    draw();
    new ResizeObserver(redraw).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      readColours();
      redraw();
    });
  } else {
    box.closest("section").hidden = true; // nothing to show
  }

  const placeOf = (i) => { // the middle of a block on the screen
    const [strip] = strips(places[i], end(i)), rect = canvas.getBoundingClientRect();
    return strip && { x: rect.left + strip.x + strip.width / 2, y: rect.top + strip.y + HEIGHT / 2, width: strip.width };
  };
  Object.assign(arenaPage, { placeOf }); // for the tests
})();
