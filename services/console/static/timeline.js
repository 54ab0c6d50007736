// Draw a partition's segments on an axis of offsets or of time, with uPlot for scales and zoom.

import uPlot from "/static/vendor/uPlot.esm.js";
import { element, bytes, count, number, time } from "/static/dom.js";

const LANES = ["in the tier", "being copied", "being deleted", "no segment", "on the broker"];
const SHORT_LANES = ["tier", "copying", "deleting", "none", "broker"];
const TIME_LANES = 3;
const STATES = {
  COPY_SEGMENT_FINISHED: 0,
  COPY_SEGMENT_STARTED: 1,
  DELETE_SEGMENT_STARTED: 2,
};
const HEIGHT = 300;
const EPOCHS = ["#2f6fd0", "#c7681a", "#2b8a4b", "#8b4fc0", "#b38600", "#14868c", "#c2457e", "#6b6f76"];
const COPYING = "#14868c", DELETING = "#c62828", GAP = "#8a8f98", LOST = "#c62828", LOCAL = "#7a8fb0";

export function colourOfEpoch(epoch) {
  return EPOCHS[((epoch % EPOCHS.length) + EPOCHS.length) % EPOCHS.length];
}

// Everything that is drawn: [lane, first, last, colour, the item, a text].
function shapes(found) {
  const isTime = found.axis === "time";
  const drawn = [];
  for (const item of found.items) {
    const lane = STATES[item.state] ?? 0;
    const colour = [colourOfEpoch(item.epoch_last), COPYING, DELETING][lane];
    drawn.push({ lane, first: item.first, last: isTime ? item.last : item.last + 1, colour, item, text: textOf(item) });
  }
  if (isTime) return drawn;
  for (const hole of found.holes) {
    drawn.push({ lane: 3, first: hole.start, last: hole.end + 1, colour: GAP, item: null,
      text: `no finished segment holds offsets ${number(hole.start)} to ${number(hole.end)}` });
  }
  for (const gap of found.gaps) {
    drawn.push({ lane: 3, first: gap.start, last: gap.end + 1, colour: LOST, item: null,
      text: `${gap.kind}: offsets ${number(gap.start)} to ${number(gap.end)}` });
  }
  if (found.local && found.local.log_end_offset > found.local.local_log_start_offset) {
    const { local_log_start_offset: first, log_end_offset: last } = found.local;
    drawn.push({ lane: 4, first, last, colour: LOCAL, item: null,
      text: `on broker ${found.local.broker_id}: offsets ${number(first)} to ${number(last - 1)}` });
  }
  return drawn;
}

export function textOf(item) {
  const epochs = item.epoch_first === item.epoch_last ? `epoch ${item.epoch_last}`
    : `epochs ${item.epoch_first} to ${item.epoch_last}`;
  return `${count(item.count, "segment")}: offsets ${number(item.start)} to ${number(item.end)}, ${epochs}, ` +
    `${bytes(item.bytes)}, latest record ${time(item.max_timestamp_ms)}, ${item.state}${item.tail ? ", a tail" : ""}`;
}

function colourOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Put a chart into `holder`. `zoom(first, last)` is called with a range that was chosen, `open(item)`
// with a single segment. Returns the function that removes the chart.
export function drawTimeline(holder, tip, found, { zoom, open }) {
  const isTime = found.axis === "time";
  // What no segment has, and what the broker has, is known by offsets alone.
  const lanes = (holder.clientWidth < 500 ? SHORT_LANES : LANES).slice(0, isTime ? TIME_LANES : undefined);
  const drawn = shapes(found);
  const pixels = window.devicePixelRatio || 1;
  const laneOf = (u, lane) => {
    const height = u.bbox.height / lanes.length;
    return [u.bbox.top + lane * height + height * 0.14, height * 0.72];
  };

  function draw(u) {
    const { ctx } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    for (const shape of drawn) {
      const left = u.valToPos(shape.first, "x", true), right = u.valToPos(shape.last, "x", true);
      const [top, height] = laneOf(u, shape.lane);
      const width = Math.max(right - left, pixels);
      ctx.fillStyle = shape.colour;
      ctx.fillRect(left, top, width, height);
      // Room between neighbours, so that single segments can be distinguished.
      if (width > 4 * pixels) {
        ctx.fillStyle = colourOf("--ground");
        ctx.fillRect(right - pixels, top, pixels, height);
      }
    }
    if (!isTime) {
      const at = u.valToPos(found.log_start_offset, "x", true);
      ctx.fillStyle = colourOf("--text");
      ctx.fillRect(at - pixels, u.bbox.top, 2 * pixels, u.bbox.height);
    }
    ctx.restore();
  }

  function shapeAt(u, x, y) {
    const lane = Math.floor((y / u.over.clientHeight) * lanes.length);
    // Narrow ones are drawn a pixel wide, and hit within three.
    let nearest = null, distance = 4;
    for (const shape of drawn) {
      if (shape.lane !== lane) continue;
      const left = u.valToPos(shape.first, "x"), right = u.valToPos(shape.last, "x");
      const away = x < left ? left - x : x > right ? x - right : 0;
      if (away < distance) {
        nearest = shape;
        distance = away;
      }
    }
    return nearest;
  }

  const last = found.to > found.from ? found.to : found.from + 1;
  const width = () => Math.max(holder.clientWidth, 240);
  const axis = {
    stroke: () => colourOf("--quiet"),
    grid: { stroke: () => colourOf("--line"), width: 1 },
    ticks: { stroke: () => colourOf("--line"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
  const options = {
    width: width(),
    height: HEIGHT,
    ms: 1,
    tzDate: (ms) => uPlot.tzDate(new Date(ms), "Etc/UTC"),
    legend: { show: false },
    scales: { x: { time: isTime, range: () => [found.from, last] }, y: { range: () => [0, 1] } },
    series: [{}, { show: true, stroke: "transparent", points: { show: false } }],
    axes: [
      { ...axis, space: 90, values: (_, splits) => splits.map(isTime ? timeOf(last - found.from) : number) },
      {
        ...axis,
        size: width() < 500 ? 70 : 110,
        grid: { show: false },
        ticks: { show: false },
        splits: () => lanes.map((_, lane) => 1 - (lane + 0.5) / lanes.length),
        values: () => lanes,
      },
    ],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
    hooks: {
      draw: [draw],
      setCursor: [(u) => {
        const { left, top } = u.cursor;
        const shape = left >= 0 ? shapeAt(u, left, top) : null;
        tip.textContent = shape ? shape.text : "";
      }],
      setSelect: [(u) => {
        if (u.select.width < 4) return;
        const first = Math.round(u.posToVal(u.select.left, "x"));
        const end = Math.round(u.posToVal(u.select.left + u.select.width, "x"));
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        zoom(first, end);
      }],
    },
  };
  const chart = new uPlot(options, [[found.from, last], [null, null]], holder);
  chart.over.addEventListener("click", (event) => {
    const shape = shapeAt(chart, event.offsetX, event.offsetY);
    if (!shape || !shape.item) return;
    if (shape.item.count === 1 && shape.item.id) open(shape.item);
    else zoom(Math.round(shape.first), Math.max(Math.round(shape.last) - 1, Math.round(shape.first) + 1));
  });
  // uPlot keeps where it is on the page until a scroll or a resize; text above it may have moved it.
  const sync = () => chart.syncRect();
  holder.addEventListener("mousemove", sync, true);
  holder.addEventListener("mousedown", sync, true);
  const resized = new ResizeObserver(() => chart.setSize({ width: width(), height: HEIGHT }));
  resized.observe(holder);
  return () => {
    resized.disconnect();
    holder.removeEventListener("mousemove", sync, true);
    holder.removeEventListener("mousedown", sync, true);
    chart.destroy();
  };
}

// Return the form of times on an axis of this length: ISO 8601 in UTC, as far as it differs.
function timeOf(lengthMs) {
  const [from, to] = lengthMs > 3 * 86400000 ? [0, 10] : lengthMs > 600000 ? [5, 16] : [11, 19];
  return (ms) => `${time(ms).slice(from, to).replace("T", " ")}${from ? "Z" : ""}`;
}

export function legend(found) {
  const epochs = new Set();
  for (const item of found.items) {
    if (STATES[item.state] !== 0) continue;
    epochs.add(item.epoch_first);
    epochs.add(item.epoch_last);
  }
  const shown = [...epochs].sort((a, b) => a - b);
  const entries = shown.slice(0, 16).map((epoch) => [`epoch ${epoch}`, colourOfEpoch(epoch)]);
  if (shown.length > 16) entries.push([`${number(shown.length - 16)} epochs more`, "#00000000"]);
  return element("ul", { class: "legend", "aria-label": "Colours of leader epochs" },
    ...entries.map(([text, colour]) => {
      const box = element("canvas", { width: 14, height: 14, "aria-hidden": "true" });
      const ctx = box.getContext("2d");
      ctx.fillStyle = colour;
      ctx.fillRect(0, 0, 14, 14);
      return element("li", {}, box, ` ${text}`);
    }));
}
