// The curve of requests and money. Its numbers stand in the page, with a table beside them for whoever does not see it.
"use strict";
(() => {
  const holder = document.getElementById("plot");
  if (!holder) return;
  let chart = null;

  // Colours come from the style sheet; a class on a probe gives them as the theme has them now.
  const colour = (name) => {
    const probe = document.createElement("span");
    probe.className = `ink-${name}`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const faded = (rgb, share) => rgb.replace("rgb(", "rgba(").replace(")", `, ${share})`);
  const points = () => JSON.parse(document.getElementById("curve-data").dataset.points);
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const short = (value) => compact.format(value).replace("K", "k");
  const cents = (value) => (value > 0 && value < 0.01 ? 4 : 2); // less than a cent is not nothing
  const dollars = (value) => `$${value >= 100 ? short(value) : value.toFixed(value >= 10 || value === 0 ? 0 : cents(value))}`;
  // As many digits as the step of the axis has, so that no two marks read alike.
  const prices = (u, splits, index, space, step) => {
    let digits = 0;
    while (digits < 8 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
    const plain = (value) => (value >= 100 ? short(value) : value.toFixed(0));
    return splits.map((value) => `$${digits && value ? value.toFixed(Math.max(2, digits)) : plain(value)}`);
  };
  // Times as everywhere here: 24 hours, UTC; a date where the day begins.
  const months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const times = (u, splits, index, space, step) =>
    splits.map((at, number) => {
      const date = new Date(at * 1000);
      const day = `${date.getUTCDate()} ${months[date.getUTCMonth()]}`;
      if (step >= 86400) return day;
      const hour = date.toISOString().slice(11, 16);
      return number === 0 || hour === "00:00" ? `${hour}\n${day}` : hour;
    });
  const height = () => (holder.clientWidth < 520 ? 200 : 260);

  const tooltip = () => {
    const box = document.createElement("div");
    box.className = "tip";
    box.hidden = true;
    const shown = (at) => new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";
    return {
      hooks: {
        init: (u) => u.over.append(box),
        setCursor: (u) => {
          const { idx, left } = u.cursor;
          box.hidden = idx == null || left < 0;
          if (box.hidden) return;
          const [at, passed, denied, spent, saved] = [0, 1, 2, 3, 4].map((row) => u.all[row][idx]);
          box.replaceChildren(
            ...[
              shown(at),
              `${short(passed)} passed`,
              `${short(denied)} denied`,
              `${dollars(spent)} spent, ${dollars(saved)} saved`,
            ].map((text) => Object.assign(document.createElement("p"), { textContent: text })),
          );
          const room = u.over.clientWidth - box.offsetWidth - 12;
          box.style.left = `${left > room ? left - box.offsetWidth - 12 : left + 12}px`;
        },
      },
    };
  };

  const draw = () => {
    const ink = Object.fromEntries(["passed", "denied", "spent", "soft", "line"].map((name) => [name, colour(name)]));
    const axis = { stroke: ink.soft, font: "12px system-ui, sans-serif", grid: { stroke: ink.line, width: 1 }, ticks: { show: false } };
    const all = points();
    if (chart) chart.destroy();
    const steps = uPlot.paths.stepped({ align: 1 });
    chart = new uPlot(
      {
        width: holder.clientWidth,
        height: height(),
        tzDate: (ts) => uPlot.tzDate(new Date(ts * 1e3), "Etc/UTC"),
        legend: { show: false },
        cursor: { y: false, points: { size: 7 } },
        scales: { x: { time: true }, y: { range: (u, low, high) => [0, (high || 1) * 1.12] }, usd: { range: (u, low, high) => [0, (high || 1) * 1.12] } },
        axes: [
          { ...axis, grid: { show: false }, values: times },
          { ...axis, size: 46, values: (u, all) => all.map((one) => short(one)) },
          { ...axis, scale: "usd", side: 1, size: 60, grid: { show: false }, values: prices },
        ],
        series: [
          {},
          { stroke: ink.passed, fill: faded(ink.passed, 0.14), width: 1.75, paths: steps, points: { show: false } },
          { stroke: ink.denied, fill: faded(ink.denied, 0.22), width: 1.75, paths: steps, points: { show: false } },
          { stroke: ink.spent, scale: "usd", width: 1.5, dash: [5, 4], points: { show: false } },
        ],
        plugins: [tooltip()],
      },
      all.slice(0, 4),
      holder,
    );
    chart.all = all;
  };

  let width = 0;
  new ResizeObserver(() => {
    if (holder.clientWidth === width || !holder.clientWidth) return;
    width = holder.clientWidth;
    if (chart) chart.setSize({ width, height: height() });
    else draw();
  }).observe(holder);
  addEventListener("themed", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id !== "curve-data" || !chart) return;
    chart.all = points();
    chart.setData(chart.all.slice(0, 4));
  });
})();
