// The page of the batch service. Everything that it shows comes from /v1; text of others is
// only ever set as text.
"use strict";

const main = document.getElementById("main");
const notice = document.getElementById("notice");
let view = new AbortController();

/** Makes an element; children are elements or text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "width") element.style.width = value;
    else if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
}

class Refused extends Error {}

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers }, signal: view.signal });
  if (response.status === 401) {
    askForToken();
    throw new DOMException("a token is needed", "AbortError");
  }
  const text = await response.text();
  const body = text ? JSON.parse(text) : null;
  if (!response.ok) throw new Refused(body?.error?.message ?? `${response.status}`);
  return body;
}

function askForToken() {
  view.abort();
  const input = make("input", { type: "password", id: "token", autocomplete: "off", required: "" });
  const form = make("form", {
    onsubmit: (event) => {
      event.preventDefault();
      // It is gone when the tab is closed.
      sessionStorage.setItem("token", input.value.trim());
      show();
    },
  }, make("p", {}, make("label", { for: "token" }, "This service asks for a token: "), input, make("button", {}, "Use it")));
  main.replaceChildren(make("h2", {}, "Token"), form);
  input.focus();
}

function tell(text) {
  notice.textContent = text;
}

function state(name) {
  return make("span", { class: name }, name.toLowerCase().replace("_", " "));
}

function duration(ms) {
  if (ms === null || Number.isNaN(ms)) return "-";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.floor((ms % 60000) / 1000)} s`;
}

function when(time) {
  return `${time.slice(0, 10)} ${time.slice(11, 19)}`;
}

function took(attempt) {
  if (!attempt) return null;
  const end = attempt.end_time ? Date.parse(attempt.end_time) : Date.now();
  return end - Date.parse(attempt.start_time);
}

/** A table; on a narrow screen each row is a card. */
function table(names, rows) {
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, i) => {
    const isNumber = typeof cell === "number";
    return make("td", { "data-name": names[i], class: isNumber ? "number" : undefined }, isNumber ? String(cell) : cell ?? "-");
  })));
  const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)));
  return make("div", { class: "scroll" }, make("table", { class: "cards" }, make("thead", {}, head), make("tbody", {}, ...body)));
}

async function batches() {
  const filter = make("input", { id: "filter", size: "40", placeholder: "state = RUNNING AND labels.team = growth" });
  const list = make("div", { id: "list" });
  const load = async () => {
    try {
      const page = await ask(`/v1/batches?page_size=100&filter=${encodeURIComponent(filter.value)}`);
      tell("");
      const rows = page.batches.map((batch) => {
        const last = batch.attempts.at(-1);
        return [
          make("a", { href: `#/batches/${encodeURIComponent(batch.batch_id)}` }, batch.batch_id),
          state(batch.state), batch.owner, when(batch.create_time), duration(took(last)), batch.accelerator ?? "cpu",
          last?.device_ms ? duration(last.device_ms) : "-", last?.fallbacks ?? "-",
        ];
      });
      const names = ["batch", "state", "owner", "submitted", "time", "accelerator", "on GPUs", "fallbacks"];
      list.replaceChildren(rows.length ? table(names, rows) : make("p", { class: "dim" }, "No batch fits."));
    } catch (error) {
      report(error);
    }
  };
  const form = make("form", { onsubmit: (event) => { event.preventDefault(); load(); } },
    make("label", { for: "filter" }, "Filter "), filter, make("button", {}, "Show"));
  main.replaceChildren(make("h2", {}, "Batches"), form, list);
  await load();
  every(2000, load);
}

/** Does something again and again while the view is shown and can be seen. */
function every(ms, work) {
  const signal = view.signal;
  const again = async () => {
    if (signal.aborted) return;
    if (!document.hidden) await work();
    if (!signal.aborted) setTimeout(again, ms);
  };
  setTimeout(again, ms);
}

async function act(path, options, then) {
  try {
    await ask(path, options);
    await then();
  } catch (error) {
    report(error);
  }
}

async function batch(id) {
  const path = `/v1/batches/${encodeURIComponent(id)}`;
  const facts = make("div", { id: "facts" });
  const report_ = make("div", { id: "report" });
  const log = make("pre", { id: "log", tabindex: "0", "aria-label": "Log" });
  main.replaceChildren(make("h2", {}, id), facts, make("h2", {}, "Log"), log, report_);
  let seen = null;
  const load = async () => {
    const found = await ask(path);
    if (found.etag === seen) return found;
    seen = found.etag;
    const ended = ["SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT"].includes(found.state);
    const button = (verb, enabled) => make("button", {
      id: verb,
      disabled: enabled ? undefined : "",
      onclick: () => act(`${path}:${verb}`, { method: "POST" }, load),
    }, verb === "cancel" ? "Cancel" : "Retry");
    const history = found.history.map((change) => [when(change.time), state(change.state), change.reason]);
    const attempts = found.attempts.map((attempt) => [
      attempt.number, attempt.end ?? "running", duration(took(attempt)),
      `${attempt.stage ?? "-"} (${attempt.stages_done} of ${attempt.stages})`, attempt.failure?.message ?? "",
    ]);
    facts.replaceChildren(
      make("p", { id: "state" }, state(found.state), ` ${found.queue?.reason ?? found.state_message}`),
      make("p", {}, button("cancel", !ended), button("retry", ended && found.state !== "SUCCEEDED")),
      make("h2", {}, "History"), table(["time", "state", "why"], history),
      ...(attempts.length ? [make("h2", {}, "Attempts"), table(["attempt", "end", "time", "stage", "failure"], attempts)] : []));
    if (ended && found.attempts.length) await showReport(path, report_);
    return found;
  };
  try {
    await load();
    follow(path, log);
    every(1000, () => load().catch(report));
  } catch (error) {
    report(error);
  }
}

/** What the run report says: stages, what ran on GPUs, fallbacks, the configuration. */
async function showReport(path, place) {
  let run;
  try {
    run = await ask(`${path}/report`);
  } catch (error) {
    if (error instanceof Refused) return;
    throw error;
  }
  const longest = Math.max(1, ...run.stages.map((stage) => stage.elapsed_ms));
  const stages = run.stages.map((stage) => [
    stage.name, state(stage.state.toUpperCase()), duration(stage.elapsed_ms),
    make("div", { class: "bar", width: `${(100 * stage.elapsed_ms) / longest}%`, role: "img", "aria-label": duration(stage.elapsed_ms) }),
    stage.report?.rows ?? "-", stage.pipelines?.length ? "gpu" : "cpu",
  ]);
  const kernels = run.stages.flatMap((stage) => (stage.report?.kernels ?? []).map((kernel) => [stage.name, kernel.kernel, kernel.launches, duration(kernel.device_ms)]));
  const fallbacks = run.fallbacks.map((one) => [one.stage ?? "the whole batch", one.node, one.reason.message, one.reason.fix]);
  const placements = run.stages.filter((stage) => stage.placements?.length);
  const effective = Object.entries(run.effective ?? {}).map(([name, value]) => [name, JSON.stringify(value.value), value.from, value.rule ?? ""]);
  place.replaceChildren(
    make("h2", {}, "Stages"), table(["stage", "state", "time", "", "rows", "where"], stages),
    ...(kernels.length ? [make("h2", {}, "On the GPU"), table(["stage", "kernel", "launches", "time"], kernels)] : []),
    ...(fallbacks.length ? [make("h2", {}, "Fallbacks"), table(["stage", "part", "why", "what to change"], fallbacks)] : []),
    ...placements.map((stage) => make("details", {}, make("summary", {}, `Plan of ${stage.name}`), make("pre", {}, stage.placements.map((node) => JSON.stringify(node)).join("\n")))),
    make("details", { id: "effective" }, make("summary", {}, "Effective configuration"), table(["setting", "value", "from", "rule"], effective)));
}

/** Follows the log; goes on where a connection broke. */
async function follow(path, place) {
  const signal = view.signal;
  let last = "";
  while (!signal.aborted) {
    try {
      const response = await fetch(`${path}/logs`, {
        headers: { ...headers(), Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) }, signal,
      });
      if (!response.ok) return;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        rest += value;
        const events = rest.split("\n\n");
        rest = events.pop();
        for (const event of events) {
          const field = (name) => event.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
          if (field("event") === "end") return;
          const data = field("data");
          if (!data) continue;
          last = field("id") ?? last;
          const line = JSON.parse(data);
          const atEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
          const where = line.stage ? `[${line.stage}] ` : "";
          place.append(make("span", { class: line.level === "error" ? "error" : undefined }, `${line.time.slice(11, 19)} ${where}${line.message}\n`));
          if (atEnd) place.scrollTop = place.scrollHeight;
        }
      }
    } catch (error) {
      if (signal.aborted) return;
    }
    await new Promise((again) => setTimeout(again, 1000));
  }
}

async function triggers() {
  const list = make("div");
  main.replaceChildren(make("h2", {}, "Triggers"), list);
  const load = async () => {
    try {
      const all = (await ask("/v1/triggers")).triggers;
      const count = (trigger, name) => trigger.events.find((one) => one.state === name)?.count ?? 0;
      const rows = all.map((trigger) => [
        trigger.name, trigger.owner, count(trigger, "PENDING"), count(trigger, "SUBMITTED"), count(trigger, "DEAD"), trigger.paused ?? "no",
        trigger.dead.at(-1) ? `${trigger.dead.at(-1).location ?? "unreadable"}: ${trigger.dead.at(-1).reason}` : "-",
        make("a", { href: "#/batches" }, "batches"),
      ]);
      const names = ["trigger", "owner", "pending", "submitted", "dead", "paused", "last dead event", ""];
      list.replaceChildren(rows.length ? table(names, rows) : make("p", { class: "dim" }, "There is no trigger."));
    } catch (error) {
      report(error);
    }
  };
  await load();
  every(3000, load);
}

function report(error) {
  if (error.name === "AbortError") return;
  tell(error instanceof Refused ? error.message : "The service does not answer; it is asked again.");
}

function show() {
  view.abort();
  view = new AbortController();
  tell("");
  const [, name, id] = location.hash.split("/");
  if (name === "triggers") triggers();
  else if (name === "batches" && id) batch(decodeURIComponent(id));
  else batches();
}

// The address after # names the view, so this link must not change it.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => { show(); main.focus(); });
show();
