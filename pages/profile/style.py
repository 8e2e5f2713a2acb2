"""What a profiling run's page adds to the look of all pages, and the little that it does."""

from __future__ import annotations

STYLE = """
#indicators tbody th{max-width:640px}
.c-kernel,.c-kernels,.c-forward{--k:#7db2f0}.c-backward{--k:#a3a8f5}.c-optimizer{--k:#efd06e}.c-loader{--k:#f5a878}
.c-copy,.c-copies{--k:#76d0b0}.c-communication{--k:#cda5ee}.c-wait{--k:#f49a94}.c-operator{--k:#b5cbe4}
.c-annotation{--k:#dedace}.c-step{--k:#cdd3da}.c-other{--k:#c6c8c4}
.lane i{background:var(--k);color:#10161f;font-style:normal;
border:1px solid color-mix(in srgb,var(--k),#000 40%);border-radius:3px;
overflow:hidden;white-space:nowrap}
.time{border:1px solid var(--line);border-radius:6px;padding:0 8px 8px}
.lanes{position:relative;min-width:100%}
.lane{position:relative;overflow:hidden;background:var(--bg);border-radius:3px}
.lane i{position:absolute;top:0;height:19px;min-width:1px;font-size:11px;line-height:17px;padding:0 0 0 2px;
cursor:pointer}
.lane i:hover,.lane i.on{box-shadow:inset 0 0 0 2px #10161f}
.lane .many{background:repeating-linear-gradient(90deg,var(--k) 0 3px,#fff7 3px 5px)}
.ticks{position:relative;height:20px;border-bottom:1px solid var(--line)}
.ticks b{position:absolute;font-size:11px;font-weight:400;color:var(--soft);border-left:1px solid var(--line);
padding-left:3px;height:20px;white-space:nowrap}
.ticks .z4,.ticks .z16{display:none}
.zoom{border:0;padding:0;margin:0 0 8px;display:flex;gap:14px;align-items:center;font-size:13px;color:var(--soft)}
.zoom legend{float:left;padding:0}
.zoom:has([value="4"]:checked)~.time .lanes{width:400%}.zoom:has([value="16"]:checked)~.time .lanes{width:1600%}
.zoom:not(:has([value="1"]:checked))~.time .z4{display:block}.zoom:has([value="16"]:checked)~.time .z16{display:block}
.readout{font-size:13px;min-height:20px;margin:0 0 6px}
@media(max-width:640px){.ticks .z1:nth-child(32n+17){display:none}}
"""

# What a box of the timeline is, for those who cannot point at it and wait.
SCRIPT = """
document.addEventListener("click", function (event) {
  var box = event.target.closest(".lane i");
  if (!box) return;
  var rank = box.closest("details");
  rank.querySelectorAll(".lane i.on").forEach(function (other) { other.classList.remove("on"); });
  box.classList.add("on");
  rank.querySelector(".readout").textContent = box.title;
});
"""
