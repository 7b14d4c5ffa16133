"use strict";
// Plots are drawn when the reader scrolls near them. The state of legends and budgets is read from the page itself, so
// that a plot that is drawn late shows what was chosen before.
(() => {
  const all = [...document.querySelectorAll(".plot")];
  const config = {
    responsive: true,
    displaylogo: false,
    // Nothing leaves the reader's machine.
    showSendToCloud: false,
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };

  function shown(section, meta) {
    if (!meta) return true;
    const buttons = [...section.querySelectorAll(".legend button")];
    const button = buttons.find((one) => one.dataset.strategy === meta.strategy);
    const budget = section.querySelector(".budget");
    return (
      (!button || button.getAttribute("aria-pressed") === "true") &&
      (meta.budget === undefined || !budget || String(meta.budget) === budget.value)
    );
  }

  function draw(plot) {
    if (plot.drawn) return;
    plot.drawn = true;
    const section = plot.closest("section");
    const spec = JSON.parse(document.getElementById(plot.id + "-spec").textContent);
    if (matchMedia("(pointer: coarse)").matches) spec.layout.dragmode = false; // a finger scrolls the page
    for (const trace of spec.data) trace.visible = shown(section, trace.meta);
    Plotly.newPlot(plot, spec.data, spec.layout, {
      ...config,
      toImageButtonOptions: { filename: plot.id, scale: 3 },
    });
  }

  function refresh(section) {
    for (const plot of section.querySelectorAll(".plot")) {
      if (!plot.drawn) continue;
      Plotly.restyle(plot, { visible: plot.data.map((trace) => shown(section, trace.meta)) });
    }
  }

  function press(button, on) {
    button.setAttribute("aria-pressed", String(on));
  }

  for (const legend of document.querySelectorAll(".legend")) {
    const section = legend.closest("section");
    const buttons = [...legend.querySelectorAll("button")];
    const isOn = (button) => button.getAttribute("aria-pressed") === "true";
    for (const button of buttons) {
      button.addEventListener("click", () => {
        press(button, !isOn(button));
        refresh(section);
      });
      button.addEventListener("dblclick", () => {
        const alone = buttons.every((one) => isOn(one) === (one === button));
        for (const one of buttons) press(one, alone || one === button);
        refresh(section);
      });
    }
  }
  for (const budget of document.querySelectorAll(".budget")) {
    budget.addEventListener("change", () => refresh(budget.closest("section")));
  }
  for (const box of document.querySelectorAll(".log")) {
    const plot = box.closest("figure").querySelector(".plot");
    box.addEventListener("change", () => {
      draw(plot);
      const range = JSON.parse(box.dataset.range);
      Plotly.relayout(
        plot,
        box.checked ? { "xaxis.type": "log", "xaxis.range": range } : { "xaxis.type": "linear", "xaxis.autorange": true },
      );
    });
  }

  const near = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
    },
    { rootMargin: "800px" },
  );
  for (const plot of all) near.observe(plot);

  // The other plots are drawn while the browser is idle, so that searching, jumping and saving find every plot.
  const rest = [...all];
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  function next() {
    const plot = rest.shift();
    if (!plot) return;
    draw(plot);
    idle(next);
  }
  idle(next);

  window.addEventListener("beforeprint", () => {
    document.body.classList.add("printing");
    for (const plot of all) {
      draw(plot);
      Plotly.relayout(plot, { width: plot.clientWidth });
    }
  });
  window.addEventListener("afterprint", () => {
    document.body.classList.remove("printing");
    for (const plot of all) Plotly.relayout(plot, { autosize: true });
  });

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const here = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const link = links.get(entry.target.id);
        if (link && entry.isIntersecting) link.setAttribute("aria-current", "true");
        else if (link) link.removeAttribute("aria-current");
      }
    },
    { rootMargin: "-40% 0px -59% 0px" },
  );
  for (const section of document.querySelectorAll("main > section")) here.observe(section);
})();
