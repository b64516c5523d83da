// Live and reserved of every run, by plotly. It gets numbers and letters only: plotly takes some text for markup.
"use strict";

(() => {
  const { runs } = JSON.parse(document.getElementById("data").textContent);
  const place = document.getElementById("lines");

  function size(bytes) {
    for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (bytes >= scale) return `${Number((bytes / scale).toFixed(2))} ${unit}`;
    }
    return `${bytes} B`;
  }

  function ticks(most) { // bytes are counted in powers of two
    const step = 2 ** Math.max(0, Math.ceil(Math.log2(most / 6)));
    const values = [];
    for (let value = 0; value <= most; value += step) values.push(value);
    return { tickvals: values, ticktext: values.map(size) };
  }

  function line(run, what, axis, paint) {
    const when = axis === "share" ? (x) => `${(100 * x).toFixed(1)} % of the events` : (x) => `${x.toFixed(3)} s`;
    return {
      type: "scatter",
      mode: "lines",
      name: `${run.letter} ${what}`,
      showlegend: false, // the page has a legend of its own, with names
      x: run[axis],
      y: run[what],
      hovertext: run[what].map((bytes, i) => `${run.letter}, ${when(run[axis][i])}<br>${what} ${size(bytes)}`),
      hoverinfo: "text",
      line: { shape: "hv", color: paint(run.colour), width: what === "reserved" ? 2 : 1.5, dash: what === "reserved" ? "solid" : "dot" },
    };
  }

  function end(run, axis, paint) { // where it did not fit
    return {
      type: "scatter",
      mode: "markers",
      showlegend: false,
      x: run[axis].slice(-1),
      y: run.reserved.slice(-1),
      hovertext: [`${run.letter} did not fit`],
      hoverinfo: "text",
      marker: { symbol: "x", size: 12, color: paint(run.colour) },
    };
  }

  function letter(run, number, axis, near, paint) { // beside the end of its line: colours alone are not enough
    const others = runs.slice(0, number).filter((other) => near(other[axis].at(-1) - run[axis].at(-1), other.reserved.at(-1) - run.reserved.at(-1)));
    return {
      x: run[axis].at(-1),
      y: run.reserved.at(-1),
      text: `<b>${run.letter}</b>`,
      xanchor: "left",
      xshift: (run.fits ? 4 : 9) + 12 * others.length,
      showarrow: false,
      font: { color: paint(run.colour) },
    };
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const paint = (name) => style.getPropertyValue(`--${name}`).trim();
    const axis = document.querySelector("input[name=axis]:checked").value;
    const lines = runs.flatMap((run) => ["reserved", "live"].map((what) => line(run, what, axis, paint)));
    const ends = runs.filter((run) => !run.fits && run.reserved.length).map((run) => end(run, axis, paint));
    const highest = (of) => Math.max(...runs.map((run) => of(run).reduce((a, b) => Math.max(a, b), 0))) || 1;
    const most = highest((run) => run.reserved), span = axis === "share" ? 1 : highest((run) => run.seconds);
    const near = (x, y) => Math.abs(x) < 0.02 * span && Math.abs(y) < 0.05 * most;
    const common = { color: paint("text"), gridcolor: paint("edge"), linecolor: paint("edge") };
    const layout = {
      margin: { l: 76, r: 12 + 12 * runs.length, t: 8, b: 56 },
      annotations: runs.map((run, number) => letter(run, number, axis, near, paint)),
      paper_bgcolor: paint("page"),
      plot_bgcolor: paint("page"),
      font: { family: "system-ui, sans-serif", size: 13, color: paint("text") },
      hoverlabel: { bgcolor: paint("panel"), bordercolor: paint("quiet"), font: { color: paint("text") } },
      xaxis: {
        ...common,
        range: [0, span],
        showgrid: false,
        zeroline: false,
        tickformat: axis === "share" ? ".0%" : "",
        title: { text: axis === "share" ? "share of the events" : "seconds of the recorded run", standoff: 12 },
      },
      yaxis: { ...common, ...ticks(most), range: [0, most * 1.06] },
    };
    return Plotly.react(place, [...lines, ...ends], layout, { displayModeBar: false, responsive: true });
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  for (const input of document.querySelectorAll("input[name=axis]")) input.addEventListener("change", draw);
  document.documentElement.dataset.drawn = Math.round(performance.now()); // the tests look at this
})();
