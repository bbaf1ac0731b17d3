"use strict";
(() => {
  const body = document.getElementById("body"), lost = document.getElementById("lost");
  const dialog = document.getElementById("clip"), video = dialog.querySelector("video");
  let shown = "";

  body.addEventListener("click", event => {
    const button = event.target.closest("button[data-place]");
    if (!button) return;
    document.getElementById("clip-name").textContent = button.dataset.name;
    video.src = `/media/${Number(button.dataset.place)}.mp4`;
    dialog.showModal();
    video.play().catch(() => {});
  });
  dialog.addEventListener("close", () => { video.pause(); video.removeAttribute("src"); video.load(); });

  async function refresh() {
    try {
      const reply = await fetch("/body");
      const text = await reply.text();
      lost.hidden = reply.ok;
      if (reply.ok && text !== shown) {
        const focused = document.activeElement && document.activeElement.dataset.name;
        if (shown) body.innerHTML = text;  // escaped by the server
        shown = text;
        const again = focused && [...body.querySelectorAll("button[data-place]")].find(one => one.dataset.name === focused);
        if (again) again.focus();
      }
    } catch (error) {
      lost.hidden = false;
    }
    setTimeout(refresh, 1000);
  }
  refresh();
})();
