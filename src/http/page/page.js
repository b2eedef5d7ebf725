// Keeps the status page fresh, and sends what its forms say. Text is only ever set as text.
"use strict";
(() => {
  const EVERY = 2000;
  const PATIENCE = 5000;
  const byId = (id) => document.getElementById(id);

  // In memory only: gone with the page, never in an address, a cookie or a storage.
  let token = "";
  let paused = false;
  let answered = byId("moment").textContent;
  let behind = 0;
  let timer = 0;

  document.documentElement.classList.add("script");

  // A document, parsed by the browser: nothing in it runs.
  function fetchPage() {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("GET", location.pathname);
      request.responseType = "document";
      request.timeout = PATIENCE;
      if (token) request.setRequestHeader("Authorization", "Bearer " + token);
      request.onload = () => resolve({ status: request.status, page: request.response });
      request.onerror = () => reject(new Error("no connection"));
      request.ontimeout = () => reject(new Error("no answer in time"));
      request.send();
    });
  }

  function swap(page) {
    const selection = getSelection();
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(old.id);
      if (!fresh) continue;
      for (const details of old.querySelectorAll("details[id]")) {
        const same = page.getElementById(details.id);
        if (same) same.open = details.open;
      }
      // What somebody is copying, or typing into, stays until that is done.
      const copying = !selection.isCollapsed && old.contains(selection.anchorNode);
      const typing = old.matches("form") && old.hidden === fresh.hidden;
      if (copying || typing || fresh.isEqualNode(old)) continue;
      const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
      old.replaceWith(document.adoptNode(fresh));
      if (focused) byId(focused)?.focus({ preventScroll: true });
    }
  }

  async function refresh() {
    clearTimeout(timer);
    try {
      const { status, page } = await fetchPage();
      if (status === 401 && token) {
        token = "";
        say("notice", "The admin token is no longer accepted: type it again to see names.");
        return refresh();
      }
      if (status !== 200 || !page?.getElementById("moment")) throw new Error("status " + status);
      swap(page);
      const moment = byId("moment");
      answered = moment.textContent;
      behind = Date.parse(moment.dateTime) - Date.now();
      say("trouble", "");
      document.body.classList.remove("stale");
    } catch (error) {
      say("trouble", `The service does not answer (${error.message}). What stands below is from ${answered}.`);
      document.body.classList.add("stale");
    }
    schedule();
  }

  function schedule() {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(refresh, EVERY);
  }

  // Said again it would be read out again.
  function say(id, text) {
    const place = byId(id);
    if (place.textContent !== text) place.textContent = text;
    if (place.classList.contains("alert")) place.hidden = !text;
  }

  // The error as the service words it; nothing when all went well.
  async function call(method, path, body, as) {
    const options = {
      method,
      headers: { Authorization: "Bearer " + as },
      credentials: "omit",
      signal: AbortSignal.timeout(PATIENCE),
    };
    if (body) options.body = JSON.stringify(body);
    try {
      const response = await fetch(path, options);
      const text = (await response.text()).trim();
      if (!response.ok) return { error: text || "status " + response.status };
      token = as;
      return { text };
    } catch (error) {
      return { error: "No answer: " + error.message };
    }
  }

  // A caller as it is written in tables: `tenant=acme,route=/v1/search`, percent-encoded.
  function entries(caller) {
    return caller.split(",").map((entry) => {
      const at = entry.indexOf("=");
      return [entry.slice(0, at), entry.slice(at + 1)].map(decodeURIComponent).join("=");
    });
  }

  function open(dialog) {
    for (const field of dialog.querySelectorAll("[data-token]")) field.value = token;
    dialog.showModal();
  }

  function openOverride({ domain, limit, caller }) {
    if (domain) {
      byId("override-domain").value = domain;
      byId("override-limit").value = limit;
      byId("override-match").value = entries(caller).join("\n");
    }
    say("override-answer", "");
    open(byId("override"));
  }

  function openRevoke(id) {
    byId("revoke-id").textContent = id;
    byId("revoke-author").value ||= byId("override-author").value;
    say("revoke-answer", "");
    open(byId("revoke"));
  }

  // What was left empty, or is no number, is left out or sent as typed: the service says what is wrong with it.
  function number(id) {
    const text = byId(id).value.trim();
    if (!text) return undefined;
    return Number.isFinite(Number(text)) ? Number(text) : text;
  }

  function override() {
    const match = {};
    for (const line of byId("override-match").value.split("\n").filter((line) => line.trim())) {
      const at = line.indexOf("=");
      if (at < 1) throw new Error("Write each entry on a line of its own, as key=value.");
      Object.defineProperty(match, line.slice(0, at).trim(), { value: line.slice(at + 1), enumerable: true, configurable: true });
    }
    const lasts = Number(byId("override-lasts").value) * 1000;
    const body = {
      domain: byId("override-domain").value,
      match,
      limit: byId("override-limit").value,
      expires_at: new Date(Date.now() + behind + lasts).toISOString(),
      author: byId("override-author").value,
      reason: byId("override-reason").value,
    };
    const change = document.querySelector("input[name=change]:checked").value;
    if (change === "multiply") body.multiply = number("override-multiply");
    if (change === "numbers") Object.assign(body, { requests_per_unit: number("override-units"), burst: number("override-burst") });
    if (change === "unlimited") body.unlimited = true;
    return body;
  }

  async function send(form, work) {
    const button = form.querySelector("button:not([type])");
    button.disabled = true;
    try {
      await work();
    } finally {
      button.disabled = false;
    }
  }

  const submits = {
    "token-form": async () => {
      const { error } = await call("GET", "overrides", null, byId("token").value);
      say("token-answer", error ?? "");
      if (!error) await refresh();
    },
    "override-form": async () => {
      let body;
      try {
        body = override();
      } catch (error) {
        return say("override-answer", error.message);
      }
      const { error, text } = await call("POST", "overrides", body, byId("override-token").value);
      say("override-answer", error ?? "");
      if (error) return;
      byId("override").close();
      byId("override-reason").value = "";
      say("notice", `Override ${JSON.parse(text).id} is set; every replica has it within a second.`);
      await refresh();
    },
    "revoke-form": async () => {
      const id = byId("revoke-id").textContent;
      const by = {};
      for (const name of ["author", "reason"]) {
        const value = byId("revoke-" + name).value;
        if (value) by[name] = value;
      }
      const { error } = await call("DELETE", "overrides/" + encodeURIComponent(id), by, byId("revoke-token").value);
      say("revoke-answer", error ?? "");
      if (error) return;
      byId("revoke").close();
      say("notice", `Override ${id} is revoked.`);
      await refresh();
    },
  };

  document.addEventListener("submit", (event) => {
    event.preventDefault();
    const work = submits[event.target.id];
    if (work) send(event.target, work);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if ("override" in button.dataset) openOverride(button.dataset);
    if ("revoke" in button.dataset) openRevoke(button.dataset.revoke);
    if ("close" in button.dataset) button.closest("dialog").close();
    if (button.id === "pause") {
      paused = !paused;
      button.setAttribute("aria-pressed", String(paused));
      button.textContent = paused ? "Go on" : "Pause";
      if (paused) clearTimeout(timer);
      else refresh();
    }
  });

  // Choosing a number chooses its kind of change.
  document.addEventListener("input", (event) => {
    const kind = event.target.closest("fieldset label")?.querySelector("input[type=radio]");
    if (kind) kind.checked = true;
  });

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else if (!paused) refresh();
  });

  schedule();
})();
