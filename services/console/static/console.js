// The pages of the console, chosen by the fragment of the address.

import {
  ask, bytes, duration, element, facts, link, number, retention, severity, table, time,
} from "/static/dom.js";
import { showPartition } from "/static/partition.js";

const main = document.getElementById("main");
const status = document.getElementById("status");
const PAGES = { topics, topic, partition, anomalies, sweeps, health };
const REFRESH_MS = 10000;
let running = null;
let leave = () => {};

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function parts() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return [path.split("/").map(decoded), new URLSearchParams(query ?? "")];
}

// A refresh would take the focus or the selection away from who is reading.
function isInUse() {
  const focused = document.activeElement;
  return (focused !== main && main.contains(focused)) || !getSelection().isCollapsed;
}

export function pathOf(...names) {
  return `#/${names.map(encodeURIComponent).join("/")}`;
}

let isLoading = false;

async function show(isRefresh = false) {
  const [[name, ...rest], query] = parts();
  // A timeline is read again when it is moved.
  if (isRefresh && (isLoading || name === "partition" || isInUse())) return;
  const page = Object.hasOwn(PAGES, name) ? PAGES[name] : topics;
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  isLoading = true;
  if (!isRefresh) {
    leave();
    leave = () => {};
    for (const each of document.querySelectorAll("nav a")) {
      const own = each.getAttribute("href").slice(2);
      const isHere = own === name || (own === "topics" && !["anomalies", "sweeps", "health"].includes(name));
      if (isHere) each.setAttribute("aria-current", "page");
      else each.removeAttribute("aria-current");
    }
  }
  const began = performance.now();
  try {
    const made = await page(rest, query, signal);
    if (signal.aborted) return;
    if (made) main.replaceChildren(...made);
    status.textContent = `read ${new Date().toLocaleTimeString()}, ${Math.round(performance.now() - began)} ms`;
  } catch (error) {
    if (signal.aborted) return;
    const text = element("p", { class: "problem", role: "alert" }, String(error.message || error));
    if (isRefresh) status.replaceChildren(text);
    else main.replaceChildren(element("h2", {}, "This page cannot be shown"), text);
  } finally {
    // A later page that has taken over is loading.
    if (running.signal === signal) isLoading = false;
  }
}

function unread(found) {
  return Object.entries(found.unread ?? {}).map(([address, why]) =>
    element("p", { class: "note" }, `RLM ${address} could not be asked: ${why}`));
}

const ORDERS = { name: "name", tier: "most in the tier", local: "most on brokers", lag: "largest lag" };
const PAGE = 100;

function topicsPath(values) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  return `#/topics?${query}`;
}

async function topics(_, query, signal) {
  const search = query.get("search") ?? "", order = query.get("order") ?? "tier";
  const offset = Number(query.get("offset") ?? 0);
  const found = await ask("topics", { search, order, offset, limit: PAGE }, signal);
  const input = element("input", { type: "search", id: "search", value: search, maxlength: 249 });
  const choice = element("select", { id: "order" }, ...Object.entries(ORDERS).map(([value, text]) =>
    element("option", { value, selected: value === order }, text)));
  const form = element("form", {
    class: "bar", role: "search",
    onsubmit: (event) => {
      event.preventDefault();
      location.hash = topicsPath({ search: input.value, order: choice.value });
    },
  }, element("label", { for: "search" }, "Name contains"), input,
  element("label", { for: "order" }, "Order"), choice, element("button", {}, "Show"));
  choice.addEventListener("change", () => form.requestSubmit());
  const sums = found.sums;
  return [
    element("h2", {}, "Topics"),
    facts([
      ["topics", number(found.total)], ["partitions", number(sums.partitions)],
      ["segments", number(sums.segments)], ["in the tier", bytes(sums.tier_bytes)],
      found.has_rlm ? ["on brokers", bytes(sums.local_bytes)] : null,
      found.has_rlm ? ["not copied yet", bytes(sums.lag_bytes)] : null,
    ]),
    found.has_rlm ? null : element("p", { class: "quiet" },
      "No RLM is known to the console: local bytes and lag are not shown."),
    ...unread(found),
    form,
    table("Topics", [
      ["topic", (t) => link(pathOf("topic", t.topic_id, t.topic), t.topic), "name"],
      ["partitions", (t) => number(t.partitions), "number"],
      ["segments", (t) => number(t.segments), "number"],
      ["in the tier", (t) => bytes(t.tier_bytes), "number"],
      ["local", (t) => bytes(t.local_bytes), "number"],
      ["lag", (t) => t.lag_bytes === null ? "-" : t.lag_segments ? `${bytes(t.lag_bytes)}, ${number(t.lag_segments)} segments` : "none", "number"],
      ["retention", (t) => retention(t.settings)],
      ["state", (t) => stateOf(t)],
    ], found.topics, search ? "no name contains this" : "the tier is empty"),
    pages(found, (to) => topicsPath({ search, order, offset: to })),
  ].filter(Boolean);
}

// Links to the pages before and after; `path` gives the address of the page from a row on.
function pages({ offset, total }, path) {
  return element("p", { class: "bar" },
    offset > 0 ? link(path(Math.max(offset - PAGE, 0)), "Previous") : null,
    offset + PAGE < total ? link(path(offset + PAGE), "Next") : null);
}

function stateOf(topic) {
  const words = [];
  if (topic.is_held) words.push("on hold");
  if (topic.deleting_partitions) words.push(`${number(topic.deleting_partitions)} partitions being deleted`);
  if (topic.problems) words.push(topic.problems === 1 ? "1 problem" : `${number(topic.problems)} problems`);
  return words.length ? element("span", { class: "note" }, words.join(", ")) : "";
}

async function topic([topicId, name], query, signal) {
  const offset = Number(query.get("offset") ?? 0);
  const found = await ask("partitions", { topic: name, topic_id: topicId, offset, limit: PAGE }, signal);
  const problems = found.partitions.flatMap((p) =>
    (p.local?.problems ?? []).map((text) => `${name}-${p.partition}: ${text}`));
  return [
    element("h2", {}, name),
    element("p", { class: "quiet" }, `${number(found.total)} partitions, topic id `, element("code", {}, topicId)),
    ...unread(found),
    table("Partitions", [
      ["partition", (p) => link(pathOf("partition", topicId, name, p.partition), `${name}-${p.partition}`), "name"],
      ["segments", (p) => number(p.segments), "number"],
      ["in the tier", (p) => bytes(p.tier_bytes), "number"],
      ["local", (p) => bytes(p.local?.bytes), "number"],
      ["lag", (p) => p.local ? (p.local.lag_segments ? `${bytes(p.local.lag_bytes)}, ${number(p.local.lag_segments)} segments` : "none") : "-", "number"],
      ["log start", (p) => number(p.local?.log_start_offset), "number"],
      ["local from", (p) => number(p.local?.local_log_start_offset), "number"],
      ["log end", (p) => number(p.local?.log_end_offset), "number"],
      ["broker", (p) => p.local ? `${p.local.broker_id}` : "-", "number"],
      ["state", (p) => p.delete_state ?? (p.local?.problems.length ? `problems: ${p.local.problems.length}` : "")],
    ], found.partitions),
    pages(found, (to) => `${pathOf("topic", topicId, name)}?${new URLSearchParams({ offset: to })}`),
    ...problems.slice(0, 50).map((text) => element("p", { class: "note" }, text)),
    element("h3", {}, "Settings"),
    table("Settings", [["setting", ([key]) => key, "name"], ["value", ([, value]) => value, "long"]],
      Object.entries(found.settings ?? {}).sort(), "none are set, so nothing expires"),
  ];
}

async function partition([topicId, name, numberText], query, signal) {
  const made = await showPartition(main, { topicId, topic: name, partition: numberText }, query, signal);
  if (made) {
    leave();
    leave = made;
  }
  return null;
}

async function anomalies(_, query, signal) {
  const kind = query.get("kind") ?? "", page = query.get("page") ?? "";
  const found = await ask("anomalies", { kind, page }, signal);
  const choice = element("select", {
    id: "kind",
    onchange: (event) => {
      location.hash = `#/anomalies?${new URLSearchParams({ kind: event.target.value })}`;
    },
  }, element("option", { value: "" }, "all"), ...found.kinds.map((each) =>
    element("option", { value: each, selected: each === kind }, each)));
  return [
    element("h2", {}, "Anomalies"),
    element("p", { class: "quiet" }, "What reconcile and scrub found, oldest first; a run that repairs one does not remove it from this list."),
    element("div", { class: "bar" }, element("label", { for: "kind" }, "Kind"), choice),
    table("Anomalies", [
      ["kind", (a) => a.kind],
      ["partition", (a) => a.topic
        ? link(pathOf("partition", a.topic_id, a.topic, a.partition), `${a.topic}-${a.partition}`)
        : `${a.topic_id}-${a.partition}`, "name"],
      ["segment", (a) => a.topic ? link(`${pathOf("partition", a.topic_id, a.topic, a.partition)}?segment=${encodeURIComponent(a.segment_id)}`, a.segment_id) : element("code", {}, a.segment_id)],
      ["object", (a) => a.object_key || "-", "long"],
      ["detail", (a) => a.detail || "-", "long"],
      ["first seen", (a) => time(a.first_seen_ms)],
      ["last seen", (a) => time(a.last_seen_ms)],
      ["times", (a) => number(a.times_seen), "number"],
    ], found.anomalies, "none were found"),
    found.next ? link(`#/anomalies?${new URLSearchParams({ kind, page: found.next })}`, "Next page") : "",
  ];
}

async function sweeps(_, __, signal) {
  const found = await ask("sweeps", {}, signal);
  return [
    element("h2", {}, "Sweeps"),
    table("The last sweep of each kind and topics", [
      ["kind", (s) => s.kind],
      ["topics", (s) => s.topics.length ? s.topics.join(", ") : "all", "long"],
      ["ended", (s) => time(s.ended_ms)],
      ["took", (s) => duration(s.duration_ms)],
      ["outcome", (s) => element("span", { class: `severity ${s.outcome === "DONE" ? "OK" : "WARNING"}` }, s.outcome.toLowerCase())],
      ["planned", (s) => number(s.planned_segments), "number"],
      ["deleted", (s) => number(s.deleted_segments), "number"],
      ["bytes", (s) => bytes(s.deleted_bytes), "number"],
      ["failed", (s) => number(s.failed_segments), "number"],
      ["run", (s) => element("code", {}, s.run_id), "long"],
    ], found.sweeps, "none ran yet"),
    element("h3", {}, "Verified topics, those first that were verified longest ago"),
    table("Verifications", [
      ["topic", (v) => link(pathOf("topic", v.topic_id, v.topic), v.topic), "name"],
      ["by", (v) => v.kind.toLowerCase()],
      ["oldest part", (v) => time(v.ended_ms)],
      ["parts", (v) => `${v.verified_parts} of ${v.parts}`],
      ["segments", (v) => number(v.segments), "number"],
      ["failed", (v) => number(v.failed_segments), "number"],
    ], found.verifications, "none ran yet"),
    found.all_verifications > found.verifications.length
      ? element("p", { class: "quiet" }, `${number(found.all_verifications - found.verifications.length)} more are not shown`) : "",
  ];
}

async function health(_, __, signal) {
  const found = await ask("health", {}, signal);
  return [
    element("h2", {}, "Health"),
    table("Services", [
      ["service", (s) => s.service.toUpperCase()],
      ["state", (s) => severity(s.severity)],
      ["", (s) => s.text, "long"],
    ], found.services),
    element("h3", {}, "Tier and copying"),
    found.note ? element("p", { class: "note" }, found.note) : "",
    table("Tier and copying", [
      ["what", (l) => l.what], ["state", (l) => severity(l.severity)], ["", (l) => l.text, "long"],
    ], found.lines, "not shown"),
  ];
}

async function about() {
  const found = await ask("about").catch(() => null);
  if (!found) return;
  const who = found.has_tls ? found.identity : "this machine only, without TLS";
  document.getElementById("who").textContent = `${found.version}, ${who}`;
}

// The link's own address is no page.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", async () => {
  await show();
  main.focus({ preventScroll: true });
});
setInterval(() => {
  if (!document.hidden) show(true);
}, REFRESH_MS);
about();
show();

