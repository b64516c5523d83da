// What the charts share: the data of the page, sizes in words, and the patterns of the legend.
"use strict";

const arenaPage = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  function size(bytes, digits = 2) {
    for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (bytes >= scale) return `${Number((bytes / scale).toFixed(digits))} ${unit}`;
    }
    return `${bytes} B`;
  }

  function last(list, value) { // the last index whose entry is at most value
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] <= value) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  function pattern(state, colour, stripe) { // as in the legend
    const scale = devicePixelRatio || 1, side = 8;
    const tile = document.createElement("canvas");
    tile.width = tile.height = side * scale;
    const ink = tile.getContext("2d");
    ink.scale(tile.width / side, tile.width / side);
    ink.fillStyle = colour;
    ink.fillRect(0, 0, side, side);
    ink.fillStyle = ink.strokeStyle = stripe;
    ink.lineWidth = 2;
    ink.beginPath();
    if (state === "stranded") {
      for (const shift of [-side, 0, side]) {
        ink.moveTo(shift - 1, side + 1);
        ink.lineTo(shift + side + 1, -1);
      }
      ink.stroke();
    } else if (state === "pending") {
      ink.arc(2, 2, 1.3, 0, 7);
      ink.moveTo(6, 6);
      ink.arc(6, 6, 1.3, 0, 7);
      ink.fill();
    } else if (state === "captured") {
      ink.fillRect(0, 1.5, side, 1);
      ink.fillRect(0, 5.5, side, 1);
      ink.fillRect(1.5, 0, 1, side);
      ink.fillRect(5.5, 0, 1, side);
    } else if (state === "spare") {
      ink.lineWidth = 1;
      for (const shift of [-side, -side / 2, 0, side / 2, side]) {
        ink.moveTo(shift - 1, -1);
        ink.lineTo(shift + side + 1, side + 1);
      }
      ink.stroke();
    } else if (state === "rounding") {
      ink.fillRect(0, 0, 1, side);
      ink.fillRect(4, 0, 1, side);
    } else {
      ink.fillRect(0, 2, side, 1.5);
      ink.fillRect(0, 6, side, 1.5);
    }
    const made = ink.createPattern(tile, "repeat");
    made.setTransform(new DOMMatrix().scale(side / tile.width));
    return made;
  }

  // After all scripts: how long the page took to open, in milliseconds, for the tests.
  document.addEventListener("DOMContentLoaded", () => {
    document.documentElement.dataset.drawn = Math.round(performance.now());
  });
  return { data, size, last, pattern };
})();
