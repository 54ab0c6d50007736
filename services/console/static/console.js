// The pages of the console, chosen by the fragment of the address.

import {
  ask, bytes, count, crumbs, duration, element, facts, lag, link, number, retention, severity, since, table,
} from "/static/dom.js";
import { showPartition } from "/static/partition.js";

const main = document.getElementById("main");
const status = document.getElementById("status");
const PAGES = { "": topics, topics, topic, partition, anomalies, sweeps, health };
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

// A refresh would take the focus or the selection away from the reader.
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
  const page = Object.hasOwn(PAGES, name) ? PAGES[name] : unknown;
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  isLoading = true;
  if (!isRefresh) {
    leave();
    leave = () => {};
    for (const each of document.querySelectorAll("nav a")) {
      const own = each.getAttribute("href").slice(2);
      const isHere = own === name || (own === "topics" && ["", "topic", "partition"].includes(name));
      if (isHere) each.setAttribute("aria-current", "page");
      else each.removeAttribute("aria-current");
    }
  }
  const began = performance.now();
  try {
    const made = await page(rest, query, signal);
    if (signal.aborted) return;
    if (made) main.replaceChildren(...made);
    document.title = `${main.querySelector("h2")?.textContent ?? "Topics"} - Sediment`;
    status.textContent = `read ${since(Date.now()).slice(0, 20)}, ${Math.round(performance.now() - began)} ms`;
    badge(signal);
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

// Say in the head of every page how many problems the page of health has, in the colour of the worst.
async function badge(signal) {
  const found = await ask("health", {}, signal).catch(() => null);
  if (!found || signal.aborted) return;
  const all = [...found.services, ...found.lines].map((each) => each.severity);
  const worst = ["CRITICAL", "WARNING"].find((each) => all.includes(each)) ?? "OK";
  const words = [["CRITICAL", "critical"], ["WARNING", "warning"]]
    .map(([name, word]) => [all.filter((each) => each === name).length, word])
    .filter(([many]) => many)
    .map(([many, word]) => (word === "warning" ? count(many, word) : `${many} ${word}`));
  const shown = document.getElementById("health");
  shown.textContent = words.length ? `Health: ${words.join(", ")}` : "Health";
  shown.className = worst;
}

function unknown() {
  return [
    element("h2", {}, "There is no such page"),
    element("p", {}, "Nothing is at ", element("code", {}, location.hash), ". ", link("#/topics", "Show the topics")),
  ];
}

function unread(found) {
  return Object.entries(found.unread ?? {}).map(([address, why]) =>
    element("p", { class: "note" }, `RLM ${address} could not be asked: ${why}`));
}

const ORDERS = { problems: "problems first", name: "name", tier: "most in the tier", local: "most on brokers", lag: "largest lag" };
const PAGE = 100;
const PROBLEMS = 50;

function topicsPath(values) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  return `#/topics?${query}`;
}

async function topics(_, query, signal) {
  const search = query.get("search") ?? "", order = query.get("order") ?? "problems";
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
      found.has_rlm ? ["lag", bytes(sums.lag_bytes)] : null,
    ]),
    found.has_rlm ? null : element("p", { class: "quiet" },
      "No RLM is known to the console: local bytes and lag are not shown."),
    ...unread(found),
    form,
    table("Topics", [
      ["topic", (t) => link(pathOf("topic", t.topic_id, t.topic), t.topic), "name", (t) => t.topic],
      ["state", (t) => stateOf(t), "", (t) => -t.problems],
      ["partitions", (t) => number(t.partitions), "number", (t) => t.partitions],
      ["segments", (t) => number(t.segments), "number", (t) => t.segments],
      ["in the tier", (t) => bytes(t.tier_bytes), "number", (t) => t.tier_bytes],
      ["local", (t) => bytes(t.local_bytes), "number", (t) => t.local_bytes],
      ["lag", (t) => lag(t.lag_bytes, t.lag_segments), "number", (t) => t.lag_bytes],
      ["retention", (t) => retention(t.settings)],
    ], found.topics, nothing(found, search)),
    pages(found, (to) => topicsPath({ search, order, offset: to })),
  ].filter(Boolean);
}

function nothing({ total }, search) {
  if (total) return `there are ${number(total)}, and no such page of them`;
  if (search) return "no name contains this";
  return "none is in the tier yet. Set remote.storage.enable=true for a topic, or run `sediment ship`; a rolled segment is copied within a minute";
}

// Say which rows these are, with links to those before and after; `path` gives the address of the
// page from a row on.
function pages({ offset, total }, path) {
  const last = Math.min(offset + PAGE, total);
  const shown = offset < total && total > PAGE ? `${number(offset + 1)} to ${number(last)} of ${number(total)}` : null;
  return element("p", { class: "bar" },
    offset > 0 ? link(path(0), "First") : null,
    offset > 0 ? link(path(Math.max(Math.min(offset, total) - PAGE, 0)), "Previous") : null,
    shown,
    last < total ? link(path(offset + PAGE), "Next") : null);
}

function stateOf(topic) {
  const words = [];
  if (topic.is_on_hold) words.push("on hold");
  if (topic.problems) words.unshift(count(topic.problems, "problem"));
  if (topic.deleting_partitions) words.push(`${count(topic.deleting_partitions, "partition")} being deleted`);
  return words.length ? element("span", { class: "note" }, words.join(", ")) : "";
}

async function topic([topicId, name], query, signal) {
  const offset = Number(query.get("offset") ?? 0);
  const found = await ask("partitions", { topic: name, topic_id: topicId, offset, limit: PAGE }, signal);
  const problems = found.partitions.flatMap((p) =>
    (p.local?.problems ?? []).map((text) => `${name}-${p.partition}: ${text}`));
  return [
    crumbs(["#/topics", "Topics"], ["", name]),
    element("h2", {}, name),
    element("p", { class: "quiet" }, `${count(found.total, "partition")}, topic id `, element("code", {}, topicId)),
    ...unread(found),
    ...problems.slice(0, PROBLEMS).map((text) => element("p", { class: "note" }, text)),
    problems.length ? element("p", { class: "quiet" }, problems.length > PROBLEMS
      ? `${count(problems.length - PROBLEMS, "further problem")} of this page; ` : "", "next: ", element("code", {}, "sediment doctor")) : "",
    table("Partitions", [
      ["partition", (p) => link(pathOf("partition", topicId, name, p.partition), `${name}-${p.partition}`), "name", (p) => p.partition],
      ["state", (p) => p.delete_state ?? (p.local?.problems.length ? element("span", { class: "note" }, count(p.local.problems.length, "problem")) : ""), "", (p) => -(p.local?.problems.length ?? 0)],
      ["segments", (p) => number(p.segments), "number", (p) => p.segments],
      ["in the tier", (p) => bytes(p.tier_bytes), "number", (p) => p.tier_bytes],
      ["local", (p) => bytes(p.local?.bytes), "number", (p) => p.local?.bytes],
      ["lag", (p) => lag(p.local?.lag_bytes, p.local?.lag_segments), "number", (p) => p.local?.lag_bytes],
      ["log start", (p) => number(p.local?.log_start_offset), "number"],
      ["local log start", (p) => number(p.local?.local_log_start_offset), "number"],
      ["log end", (p) => number(p.local?.log_end_offset), "number"],
      ["broker", (p) => brokerOf(p.local), "number"],
    ], found.partitions, nothing(found, "")),
    pages(found, (to) => `${pathOf("topic", topicId, name)}?${new URLSearchParams({ offset: to })}`),
    element("h3", {}, "Settings"),
    table("Settings", [["setting", ([key]) => key, "name"], ["value", ([, value]) => value, "long"]],
      Object.entries(found.settings ?? {}).sort(), "none are set, so nothing expires"),
  ];
}

export function brokerOf(local) {
  return local && local.broker_id >= 0 ? `${local.broker_id}` : "-";
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
      ["first seen", (a) => since(a.first_seen_ms), "", (a) => a.first_seen_ms],
      ["last seen", (a) => since(a.last_seen_ms), "", (a) => a.last_seen_ms],
      ["times", (a) => number(a.times_seen), "number", (a) => a.times_seen],
    ], found.anomalies, "none is recorded. The page of sweeps says when each topic was last verified"),
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
      ["ended", (s) => since(s.ended_ms), "", (s) => s.ended_ms],
      ["took", (s) => duration(s.duration_ms)],
      ["outcome", (s) => element("span", { class: `severity ${s.outcome === "DONE" ? "OK" : "WARNING"}` }, s.outcome.toLowerCase())],
      ["planned", (s) => number(s.segments), "number"],
      ["deleted", (s) => number(s.done_segments), "number"],
      ["bytes", (s) => bytes(s.done_bytes), "number"],
      ["failed", (s) => number(s.failed_segments), "number"],
      ["run", (s) => element("code", {}, s.run_id), "long"],
    ], found.sweeps, "none ran yet. `sediment sweep retention` runs one"),
    element("h3", {}, "Verified topics, those first that were verified longest ago"),
    table("Verifications", [
      ["topic", (v) => link(pathOf("topic", v.topic_id, v.topics[0]), v.topics[0]), "name"],
      ["by", (v) => v.kind.toLowerCase()],
      ["oldest part", (v) => since(v.ended_ms), "", (v) => v.ended_ms],
      ["parts", (v) => `${v.ended_parts} of ${v.parts}`],
      ["segments", (v) => number(v.segments), "number"],
      ["failed", (v) => number(v.failed_segments), "number"],
    ], found.checks, "none ran yet. `sediment reconcile` and `sediment scrub` verify"),
    found.all_checks > found.checks.length
      ? element("p", { class: "quiet" }, `${number(found.all_checks - found.checks.length)} more are not shown`) : "",
  ];
}

async function health(_, __, signal) {
  const found = await ask("health", {}, signal);
  return [
    element("h2", {}, "Health"),
    table("Services", [
      ["service", (s) => s.service.toUpperCase()],
      ["state", (s) => severity(s.severity)],
      ["what it says", (s) => s.text, "long"],
    ], problemsFirst(found.services)),
    element("h3", {}, "Tier and copying"),
    found.note ? element("p", { class: "note" }, found.note) : "",
    table("Tier and copying", [
      ["what", (l) => l.what], ["state", (l) => severity(l.severity)], ["what is known", (l) => [l.text, l.next && `next: ${l.next}`].filter(Boolean).join("; "), "long"],
    ], problemsFirst(found.lines), "not shown"),
  ];
}

function problemsFirst(rows) {
  const rank = { CRITICAL: 0, WARNING: 1, OK: 3 };
  return [...rows].sort((a, b) => (rank[a.severity] ?? 2) - (rank[b.severity] ?? 2));
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

