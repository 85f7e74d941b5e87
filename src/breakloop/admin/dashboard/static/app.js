// Live updates, dialogs, keys and colours. Pages work without it: links, forms and reloads do the same.
"use strict";
(() => {
  const body = document.body;
  const announce = document.getElementById("announce");

  // -- live: the stream says that something happened, and parts of the page are asked for again ----------------------
  const GAP_MS = 1500; // after an event
  const SUMS_MS = 5000; // sums come every second, and are no news
  let source = null;
  let last = 0;
  let due = 0;

  const said = (state, text) => {
    document.getElementById("live").dataset.state = state;
    document.getElementById("live-said").textContent = text;
  };
  const refresh = () => {
    due = 0;
    last = Date.now();
    htmx.trigger(body, "live");
  };
  const happened = () => {
    if (!due) due = setTimeout(refresh, Math.max(0, last + GAP_MS - Date.now()));
  };
  const listen = () => {
    if (source || document.hidden) return;
    source = new EventSource("/live");
    source.onopen = () => said("on", "live");
    source.onerror = () => said("poll", "reconnecting");
    source.addEventListener("happened", happened);
    source.addEventListener("sums", () => {
      if (Date.now() - last > SUMS_MS) happened();
    });
  };
  const pause = () => {
    if (source) source.close();
    source = null;
    said("poll", "paused");
  };
  // A browser keeps six connections to a server: a page that nobody sees gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return pause();
    listen();
    happened();
  });
  addEventListener("pagehide", pause);

  // -- what a swap must not lose: open details, and what is new ----------------------------------------------------
  let open = [];
  let newest = "";
  let seen = 0;
  const ids = (root) => [...root.querySelectorAll("tr[data-id]")].map((row) => Number(row.dataset.id));
  body.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    open = [...target.querySelectorAll("details[open]")].map((one) => one.id).filter(Boolean);
    seen = Math.max(0, ...ids(target));
    const part = target.querySelector("[data-newest]");
    newest = part ? part.dataset.newest : "";
  });
  body.addEventListener("htmx:afterSwap", (event) => {
    const target = document.getElementById(event.detail.target.id) || event.detail.target;
    for (const id of open) {
      const one = document.getElementById(id);
      if (one) one.open = true;
    }
    if (seen) {
      for (const row of target.querySelectorAll("tr[data-id]")) {
        if (Number(row.dataset.id) > seen) row.classList.add("fresh");
      }
    }
    const part = target.querySelector("[data-newest]");
    if (part && part.dataset.newest && part.dataset.newest !== newest) {
      announce.textContent = part.dataset.announce;
      const row = part.querySelector(".row");
      if (row && newest !== "") row.classList.add("fresh");
    }
  });

  // -- questions, in a dialog --------------------------------------------------------------------------------------
  const dialog = document.getElementById("ask");
  body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target !== dialog || dialog.open) return;
    dialog.showModal();
    const first = dialog.querySelector("input:not([type=hidden]), select, button");
    if (first) first.focus();
  });
  body.addEventListener("htmx:responseError", (event) => {
    const link = event.detail.elt;
    if (event.detail.target === dialog && link.href) location.assign(link.href);
  });
  dialog.addEventListener("click", (event) => {
    const close = event.target === dialog || event.target.closest("[data-close]");
    if (!close) return;
    event.preventDefault();
    dialog.close();
  });
  body.addEventListener("keydown", (event) => {
    if (event.key === " " && event.target.matches("a[role=button]")) {
      event.preventDefault();
      event.target.click();
    }
  });

  // -- keys: g and then the letter of a page, / for the search -----------------------------------------------------
  let went = 0;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (event.target.closest("input, select, textarea")) return;
    if (event.key === "g") {
      went = Date.now();
    } else if (Date.now() - went < 1200) {
      went = 0;
      const link = document.querySelector(`.nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) location.assign(link.href);
    } else if (event.key === "/") {
      const field = document.querySelector("main input[type=search]");
      if (!field) return;
      event.preventDefault();
      field.focus();
    }
  });

  // -- light and dark, without a reload ----------------------------------------------------------------------------
  for (const button of document.querySelectorAll(".theme button")) {
    button.addEventListener("click", (event) => {
      event.preventDefault();
      document.cookie = `breakloop_theme=${button.value};path=/;max-age=31536000;samesite=strict`;
      document.documentElement.dataset.theme = button.value;
      for (const one of document.querySelectorAll(".theme button")) {
        one.setAttribute("aria-pressed", String(one === button));
      }
      dispatchEvent(new Event("themed"));
    });
  }

  // Where pages stand in a strip, the current one is in sight.
  const current = document.querySelector(".nav a[aria-current]");
  const strip = document.querySelector(".nav");
  if (current && strip.scrollWidth > strip.clientWidth) {
    strip.scrollLeft = current.offsetLeft - (strip.clientWidth - current.offsetWidth) / 2;
  }

  listen();
})();
