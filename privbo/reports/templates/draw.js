// Colours follow the page's own variables; paper gets the light ones whatever the screen shows.
(function(){
"use strict";
var specs=JSON.parse(document.getElementById("figures").textContent);
var paper={"--ink":"#000","--line":"#bbb"};
function colour(name,printing){
  return printing?paper[name]:getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
function draw(printing){
  Object.keys(specs).forEach(function(id){
    var node=document.getElementById(id);
    if(!node){return;}
    if(!node.layout){node.textContent="";node.style.height="340px";}
    var layout=JSON.parse(JSON.stringify(specs[id].layout));
    var ink=colour("--ink",printing),line=colour("--line",printing);
    layout.paper_bgcolor="rgba(0,0,0,0)";layout.plot_bgcolor="rgba(0,0,0,0)";
    layout.font={color:ink,family:"system-ui, sans-serif",size:13};
    ["xaxis","yaxis","yaxis2"].forEach(function(axis){
      if(layout[axis]){layout[axis].gridcolor=line;layout[axis].linecolor=line;layout[axis].zerolinecolor=line;}
    });
    Plotly.react(node,JSON.parse(JSON.stringify(specs[id].data)),layout,{displayModeBar:false,responsive:true});
  });
}
draw(false);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change",function(){draw(false);});
window.addEventListener("beforeprint",function(){draw(true);});
window.addEventListener("afterprint",function(){draw(false);});
})();
