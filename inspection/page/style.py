"""What a run's page adds to the look of all pages: states, charts, pictures, hashes."""

from __future__ import annotations

STYLE = """
:root{--gap:#e9edf2;--p1:#e0902f;--p2:#6fa8ec;
--g-productive:#58ab7b;--g-start-up:#8fa3b8;--g-data-wait:#d98a3d;--g-checkpoint:#4f8fd0;--g-evaluation:#8f86d8;
--g-lost:#c94f44;--g-recovery:#e0a19b;--g-stop:#b9bec6}
@media(prefers-color-scheme:dark){:root{--gap:#202832;--p1:#e0a04a;--p2:#3f6fae;
--g-productive:#4caf78;--g-start-up:#71869c;--g-data-wait:#d98a3d;--g-checkpoint:#5b9bdc;--g-evaluation:#9a92e0;
--g-lost:#e0665b;--g-recovery:#c9877f;--g-stop:#7d8590}}
h1 .id{font-size:15px;font-weight:400;color:var(--soft);margin-left:8px;overflow-wrap:anywhere}
h1{overflow-wrap:anywhere}
a{color:var(--accent)}
.good{--c:var(--good)}.bad{--c:var(--bad)}.warning{--c:var(--warning)}.live{--c:var(--note)}.idle{--c:var(--soft)}
.chip{color:var(--c);font-weight:600;white-space:nowrap}
.chip svg{width:1em;height:1em;margin-right:.35em;vertical-align:-.12em}
.shape{display:inline-block;fill:none;stroke:var(--c);stroke-width:1.5;stroke-linecap:round;
stroke-linejoin:round}
.block-line{display:block}
.block-line+.block-line{margin-top:2px}
b.good,b.bad{color:var(--c)}
.tiles.head{grid-template-columns:repeat(auto-fill,minmax(210px,1fr))}
.tiles.head .value{font-size:22px}.tiles.head .chip{font-size:19px}
.tile .chip+*{margin-left:4px}
.tile.alarm{border-color:var(--bad)}.tile.alarm .value{color:var(--bad)}
.said{white-space:pre-wrap;font-family:ui-monospace,Menlo,Consolas,monospace;font-size:13px}
#stages td:nth-child(n+4) small{white-space:nowrap}#stages .bar{display:block;margin:4px 0 0}
#stages tbody th{min-width:80px}
#facts{margin:0 0 16px}
@media(min-width:1000px){#facts{grid-template-columns:max-content 1fr max-content 1fr}}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:18px 28px}
.chart-box .legend{margin:2px 0 0}
.chart-box>.plot>svg{height:218px}
.square{max-width:460px}.square .plot>svg{height:300px}
.strip-plot>svg{height:66px;overflow:visible;background:none}
.gap{fill:var(--gap);stroke:none}
.rule-preemption,.rule-interruption,.rule-kill,.rule-crash,.rule-resume{fill:none;stroke-width:1;vector-effect:non-scaling-stroke}
.rule-preemption{stroke:var(--warning);stroke-dasharray:4 3}.rule-crash{stroke:var(--bad);stroke-dasharray:2 3}
.rule-resume{stroke:var(--good);stroke-dasharray:1 3}
.rule-interruption,.rule-kill{stroke:var(--soft);stroke-dasharray:4 3}
.mark{stroke:var(--card);stroke-width:1}
.m-start,.m-resume{fill:var(--good)}.m-end{fill:var(--ink)}.m-checkpoint{fill:var(--s0)}.m-best{fill:var(--s3)}
.m-preemption{fill:var(--warning)}.m-crash{fill:var(--bad)}.m-interruption,.m-kill{fill:var(--soft)}
.strips{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:14px 24px}
.strip p{margin:0 0 4px;font-size:13px;color:var(--soft)}.strip strong{color:var(--ink)}
.strip svg{width:100%;height:56px;background:var(--bg);border-radius:4px}
.fill{fill:var(--s0)}
.sheet{display:flex;flex-wrap:wrap;gap:10px;padding:0;margin:0 0 10px;list-style:none}
.sheet li{display:flex;flex-direction:column;align-items:center;width:76px;overflow-wrap:anywhere;
font-size:13px;text-align:center}
.sheet img{border:1px solid var(--line);border-radius:4px;max-height:140px;object-fit:contain;image-rendering:auto}
#first-slot :is(li,img){width:auto;height:auto;max-width:100%;max-height:none}
.worst li{width:132px}.worst .file{font-size:12px}
.words li{flex:1 1 360px;width:auto;align-items:flex-start;text-align:left;
border-left:3px solid var(--line);padding-left:10px}.words q{white-space:pre-line}
.picture{width:72px;height:72px;display:grid;place-items:center;border:1px dashed var(--line)}
.g-productive{--k:var(--g-productive)}.g-start-up{--k:var(--g-start-up)}.g-data-wait{--k:var(--g-data-wait)}
.g-checkpoint{--k:var(--g-checkpoint)}.g-evaluation{--k:var(--g-evaluation)}.g-lost{--k:var(--g-lost)}
.g-recovery{--k:var(--g-recovery)}.g-stop{--k:var(--g-stop)}
.matrix{border-spacing:2px}.matrix td{min-width:24px;padding:3px 4px;font-size:12px}.matrix td>*{display:inline}
.matrix .none{color:var(--soft)}.matrix .off{outline:2px solid var(--bad);outline-offset:-2px}
.matrix tbody th{text-align:right;max-width:220px;white-space:normal;overflow-wrap:anywhere;padding:3px 6px}
.matrix thead th{max-width:none;white-space:nowrap}
.upright thead th:not(.corner){vertical-align:bottom;padding:4px 2px;max-width:none}
.upright thead th span{writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap;display:inline-block}
td.words{min-width:110px}#stages td:nth-child(3){min-width:200px}
td:has(>.chip){white-space:nowrap;padding-right:14px}
.matrix caption{max-width:none}.matrix.dense{border-spacing:1px}.dense td{min-width:0;padding:2px 1px;font-size:10px}
.dense tbody th{max-width:150px;font-size:11px;padding:1px 4px}.dense thead th:not(.corner){padding:2px 0}
.duo{display:flex;flex-wrap:wrap;gap:0 32px;align-items:start}.duo>div{min-width:0;flex:1 1 440px}
.duo>.whole{flex:1 0 auto;max-width:100%}.whole>:is(p,figure){width:0;min-width:100%}
.pieces{display:flex;height:10px;min-width:180px;margin-top:6px;gap:1px}.pieces i{background:var(--k)}
.c-kernels,.c-forward{--k:#7db2f0}.c-backward{--k:#a3a8f5}.c-optimizer{--k:#efd06e}.c-loader{--k:#f5a878}
.c-copies{--k:#76d0b0}.c-communication{--k:#cda5ee}.c-other{--k:#c6c8c4}
.p0{--k:var(--s0)}.p1{--k:var(--p1)}.p2{--k:var(--p2)}.p3{--k:var(--s4)}
#class-outcomes tbody th,#columns tbody th,#columns td.words{min-width:70px}
#classes{width:100%}#classes td:last-child{width:45%}
#classes thead th:last-child{text-align:left}
.hash{user-select:all;word-break:break-all}
.match{color:var(--good);font-size:13px;white-space:nowrap}
#lineage-chain td{min-width:280px}
#gates td,#parity td{max-width:420px}
.yaml{max-height:560px;overflow:auto;background:var(--bg);border:1px solid var(--line);border-radius:8px;padding:12px;
margin:0}
.uri{color:var(--soft)}
td small{display:inline}td .block-line small{display:inline}
@media(max-width:640px){.tiles.head{grid-template-columns:1fr 1fr}.tiles.head .value{font-size:18px}
.tiles.head .chip{font-size:16px}}
@media print{.scroll{overflow:visible}.yaml{max-height:none}nav{display:none}details{display:block}}
"""
