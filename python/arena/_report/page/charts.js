// The histogram, by plotly. It gets sizes and counts only: plotly takes some text for markup, and names may be anything.
"use strict";

(() => {
  const { data, size } = arenaPage;
  const place = document.getElementById("sizes");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kinds = [
    { name: "live blocks", bins: data.live_sizes, colour: "requested", shape: "" },
    { name: "free pieces", bins: data.free_sizes, colour: "stranded", shape: "/" },
  ];
  const lows = kinds.flatMap((kind) => kind.bins.map(([low]) => low));
  const first = Math.min(...lows), bins = [];
  for (let low = first; low <= Math.max(...lows); low *= 2) bins.push(low);
  const labels = bins.map((low) => size(low));

  function trace({ name, bins: found, colour, shape }, measure, paint) {
    const byLow = new Map(found.map(([low, count, bytes]) => [low, { count, bytes }]));
    const at = (low) => byLow.get(low) ?? { count: 0, bytes: 0 };
    return {
      type: "bar",
      name,
      x: labels,
      y: bins.map((low) => at(low)[measure]),
      hovertext: bins.map((low) => {
        const { count, bytes } = at(low);
        return `${size(low)} to ${size(2 * low)}<br>${count.toLocaleString("en")} ${name}, ${size(bytes)}`;
      }),
      hoverinfo: "text",
      marker: { color: paint(colour), pattern: { shape, bgcolor: paint(colour), fgcolor: paint("page"), size: 6, solidity: 0.25 } },
    };
  }

  function ticks(most) { // bytes are counted in powers of two
    const step = 2 ** Math.max(0, Math.ceil(Math.log2(most / 5)));
    const values = [];
    for (let value = 0; value <= most; value += step) values.push(value);
    return { tickvals: values, ticktext: values.map((value) => size(value)) };
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const paint = (name) => style.getPropertyValue(`--${name}`).trim();
    const measure = document.querySelector("input[name=measure]:checked").value;
    const traces = kinds.map((kind) => trace(kind, measure, paint));
    const most = Math.max(1, ...traces.flatMap((one) => one.y));
    const axis = { color: paint("text"), gridcolor: paint("edge"), linecolor: paint("edge"), fixedrange: true };
    const layout = {
      barmode: "group",
      bargap: 0.25,
      margin: { l: 76, r: 8, t: 8, b: 56 },
      paper_bgcolor: paint("page"),
      plot_bgcolor: paint("page"),
      font: { family: "system-ui, sans-serif", size: 13, color: paint("text") },
      legend: { orientation: "h", y: 1.12 },
      hoverlabel: { bgcolor: paint("panel"), bordercolor: paint("quiet"), font: { color: paint("text") } },
      xaxis: { ...axis, type: "category", showgrid: false, automargin: true, title: { text: "from this size to twice of it", standoff: 12 } },
      yaxis: { ...axis, ...(measure === "bytes" ? ticks(most) : {}), rangemode: "tozero" },
    };
    return Plotly.react(place, traces, layout, { displayModeBar: false, responsive: true });
  }

  // Plotly is large: a second of work where machines are slow. It lies in the page as text, and runs when it is needed.
  function start() {
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.head.append(script);
    draw();
    dark.addEventListener("change", draw);
    for (const input of document.querySelectorAll("input[name=measure]")) input.addEventListener("change", draw);
  }

  if (lows.length) {
    const near = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      near.disconnect();
      start();
    }, { rootMargin: "300px" });
    near.observe(place);
  } else {
    place.closest("section").hidden = true;
  }
  // How long it took to open, in milliseconds: the tests look at this.
  document.documentElement.dataset.drawn = Math.round(performance.now());
})();
