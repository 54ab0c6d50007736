// One partition: its figures, its timeline, the segments in view, and the life of one of them.

import { ask, bytes, count, crumbs, element, facts, lag, number, since, table, time } from "/static/dom.js";
import { drawTimeline, legend } from "/static/timeline.js";

const LISTED = 50;

// Show a partition in `main`; return the function that removes it, or null if `signal` ended it.
export async function showPartition(main, name, query, signal) {
  const view = {
    axis: query.get("axis") === "time" ? "time" : "offset",
    from: query.get("from"), to: query.get("to"), segment: query.get("segment"),
  };
  const holder = element("div", {
    class: "chart", tabindex: 0, role: "group",
    "aria-label": "Timeline of segments. Left and right move, plus and minus zoom, 0 shows all. The table below lists the first 50 rows.",
  });
  const tip = element("p", { id: "tip", "aria-live": "off" });
  const parts = Object.fromEntries(["figures", "bar", "legend", "list", "life", "trouble"].map((key) =>
    [key, element("div", { id: key })]));
  const topicPath = `#/topic/${encodeURIComponent(name.topicId)}/${encodeURIComponent(name.topic)}`;
  let remove = () => {}, found = null, asked = null;

  function remember() {
    const values = new URLSearchParams();
    for (const [key, value] of Object.entries(view)) {
      if (value !== null && value !== undefined && !(key === "axis" && value === "offset")) values.set(key, value);
    }
    const base = location.hash.split("?")[0];
    history.replaceState(null, "", values.size ? `${base}?${values}` : base);
  }

  async function load() {
    asked?.abort();
    asked = new AbortController();
    const own = asked;
    const width = Math.max(Math.round(main.clientWidth), 200);
    try {
      const answer = await ask("timeline", {
        topic: name.topic, topic_id: name.topicId, partition: name.partition,
        axis: view.axis, from: view.from, to: view.to, bins: Math.min(width, 1500),
      }, own.signal);
      if (signal.aborted) return;
      found = answer;
      parts.trouble.replaceChildren();
      draw();
    } catch (error) {
      if (own.signal.aborted) return;
      parts.trouble.replaceChildren(element("p", { class: "problem", role: "alert" }, String(error.message)));
      if (found === null) throw error;
    }
  }

  function range(first, last) {
    const low = Math.max(Math.min(first, last), found.whole_from);
    const high = Math.min(Math.max(first, last), found.whole_to);
    const isWhole = low <= found.whole_from && high >= found.whole_to;
    view.from = isWhole ? null : Math.max(low, 0);
    view.to = isWhole ? null : Math.max(high, low);
    remember();
    load();
  }

  const span = () => Math.max(found.to - found.from, 1);
  const acts = {
    "Zoom in": () => range(found.from + Math.floor(span() / 4), found.to - Math.floor(span() / 4)),
    "Zoom out": () => range(found.from - span(), found.to + span()),
    Left: () => {
      const by = Math.min(Math.ceil(span() / 2), found.from - found.whole_from);
      range(found.from - by, found.to - by);
    },
    Right: () => {
      const by = Math.min(Math.ceil(span() / 2), found.whole_to - found.to);
      range(found.from + by, found.to + by);
    },
    All: () => range(found.whole_from, found.whole_to),
  };
  const keys = { "+": "Zoom in", "=": "Zoom in", "-": "Zoom out", ArrowLeft: "Left", ArrowRight: "Right", 0: "All" };
  holder.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
    if (!act) return;
    event.preventDefault();
    acts[act]();
  });

  function choose(axis) {
    Object.assign(view, { axis, from: null, to: null });
    remember();
    load();
  }

  async function open(id) {
    view.segment = id;
    remember();
    for (const row of parts.list.querySelectorAll("tr[data-id]")) {
      row.setAttribute("aria-selected", String(row.dataset.id === id));
    }
    parts.life.replaceChildren(element("p", { class: "quiet" }, "Loading the segment"));
    try {
      const life = await ask("segment", {
        topic: name.topic, topic_id: name.topicId, partition: name.partition, id,
      }, signal);
      if (view.segment === id) parts.life.replaceChildren(lifeOf(life));
    } catch (error) {
      const text = element("p", { class: "problem", role: "alert" }, String(error.message));
      if (view.segment === id) parts.life.replaceChildren(text);
    }
  }

  function draw() {
    const local = found.local;
    parts.figures.replaceChildren(facts([
      ["segments", number(found.segments)],
      ["log start", number(found.log_start_offset)],
      local ? ["local log start", number(local.local_log_start_offset)] : null,
      local ? ["log end", number(local.log_end_offset)] : found.report ? ["log end, as reported", number(found.report.log_end_offset)] : null,
      local ? ["copied through", number(local.copied_through_offset)] : found.report ? ["copied through", number(found.report.copied_through_offset)] : null,
      local ? ["lag", lag(local.lag_bytes, local.lag_segments)] : null,
      local && local.broker_id >= 0 ? ["broker", `${local.broker_id}${local.role ? `, ${local.role.toLowerCase()}` : ""}`] : null,
      ["recorded gaps", number(found.gaps.length)],
    ]), ...(local?.problems ?? []).map((text) => element("p", { class: "note" }, `${text}; next: sediment doctor`)),
    ...Object.entries(found.unread).map(([address, why]) =>
      element("p", { class: "note" }, `RLM ${address} could not be asked: ${why}`)));
    const axes = [["offset", "By offset"], ["time", "By time"]].map(([axis, text]) =>
      element("button", { type: "button", "aria-pressed": String(view.axis === axis), onclick: () => choose(axis) }, text));
    const moves = Object.entries(acts).map(([text, act]) => element("button", { type: "button", onclick: act }, text));
    const ends = view.axis === "time" ? `${time(found.from)} to ${time(found.to)}` : `offsets ${number(found.from)} to ${number(found.to)}`;
    parts.bar.replaceChildren(element("div", { class: "bar" }, ...axes, ...moves,
      element("span", { class: "quiet" }, `${ends}, ${count(found.shown_segments, "segment")} in view`)));
    remove();
    remove = drawTimeline(holder, tip, found, { zoom: range, open: (item) => open(item.id) });
    parts.legend.replaceChildren(legend(found));
    const listed = found.items.slice(0, LISTED);
    const list = table("Segments in view", [
      ["offsets", (i) => element("button", {
        type: "button", class: "link",
        onclick: () => (i.count === 1 && i.id ? open(i.id) : range(i.first, i.last)),
      }, `${number(i.start)} to ${number(i.end)}`)],
      ["segments", (i) => number(i.count), "number"],
      ["epochs", (i) => i.epoch_first === i.epoch_last ? `${i.epoch_last}` : `${i.epoch_first} to ${i.epoch_last}`, "number"],
      ["bytes", (i) => bytes(i.bytes), "number"],
      ["latest record", (i) => time(i.max_timestamp_ms)],
      ["state", (i) => i.state + (i.tail ? ", a tail" : "")],
    ], listed, "no segment is in this range");
    [...list.querySelectorAll("tbody tr")].forEach((row, index) => {
      if (listed[index].id) row.dataset.id = listed[index].id;
      row.setAttribute("aria-selected", String(Boolean(view.segment) && listed[index].id === view.segment));
    });
    const more = found.items.length - listed.length;
    parts.list.replaceChildren(element("h3", {}, "Segments in view"), list,
      more > 0 ? element("p", { class: "quiet" }, `${count(more, "further row")} in the chart alone; zoom in to list them`) : "");
  }

  await load();
  if (signal.aborted) return null;
  main.replaceChildren(
    crumbs(["#/topics", "Topics"], [topicPath, name.topic], ["", `${name.topic}-${name.partition}`]),
    element("h2", {}, `${name.topic}-${name.partition}`),
    parts.trouble, parts.figures, parts.bar, holder, tip, parts.legend, parts.life, parts.list);
  // Again, at the width that the chart has now.
  draw();
  if (view.segment) open(view.segment);
  return () => {
    asked?.abort();
    remove();
  };
}

function lifeOf(life) {
  const segment = life.segment, objects = life.objects;
  return element("section", { class: "life", "aria-label": "Life of a segment" },
    element("h3", {}, segment ? `Segment ${number(segment.start_offset)} to ${number(segment.end_offset)}` : "A segment that is gone"),
    element("p", {}, element("strong", {}, life.verdict ?? "")),
    facts([
      ["segment id", element("code", {}, life.segment_id)],
      segment ? ["state", segment.state + (segment.tail ? ", a tail" : "") + (segment.copy_leased ? ", under a lease" : "")] : null,
      segment ? ["size", `${number(segment.segment_size_in_bytes)} bytes`] : null,
      segment ? ["latest record", since(segment.max_timestamp_ms)] : null,
      segment ? ["leader epochs", segment.segment_leader_epochs.map(([epoch, start]) => `${epoch} from ${number(start)}`).join(", ")] : null,
      segment ? ["latest change by broker", `${life.broker_id}`] : null,
    ]),
    element("h3", {}, "Objects and digests"),
    objectsOf(objects),
    element("h3", {}, "Events"),
    life.events_note ? element("p", { class: "note" }, life.events_note) : "",
    table("Events", [
      ["revision", (e) => number(e.revision), "number"],
      ["change", (e) => e.change, "long"],
      ["when, by whom, why", (e) => e.text, "long"],
    ], life.events));
}

function objectsOf(objects) {
  if (!objects) return element("p", { class: "quiet" }, "The copy has not finished: RLMM does not know its objects yet.");
  if (objects.problem) return element("p", { class: "note" }, objects.problem);
  const indexes = Object.entries(objects.indexes).map(([kind, size]) => `${kind.toLowerCase().replaceAll("_", " ")} ${number(size)}`);
  return element("div", {},
    facts([
      ["location", `${objects.location_id}`],
      ["copy", element("code", {}, objects.attempt)],
      ["manifest's sha256 begins with", element("code", {}, objects.manifest_sha256_prefix)],
    ]),
    table("Objects", [
      ["object, after the location's prefix", (o) => element("code", {}, o.key), "long"],
      ["bytes", (o) => number(o.bytes), "number"],
    ], objects.objects),
    element("p", { class: "quiet" }, `Bytes of the indexes: ${indexes.join(", ")}.`));
}
