"""One builder for each kind of panel, so that the same kind looks the same in all dashboards."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as shape
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models import prometheus as prom

from dashboards.queries.query import Query

DATASOURCE = shape.DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS = 24

Panel = timeseries.Panel | stat.Panel | bargauge.Panel | heatmap.Panel | statetimeline.Panel
_P = TypeVar("_P", timeseries.Panel, stat.Panel, bargauge.Panel, heatmap.Panel, statetimeline.Panel)

GOOD, WARN, BAD, PLAIN = "green", "orange", "red", "blue"
_LEAST = {
    "short": 1,
    "suffix: /s": 1,
    "bytes": 2.0**20,
    "Bps": 2.0**10,
}  # minimum upper end of an axis: else a line of zeros would have an axis of hundredths
Steps = Sequence[tuple[float | None, str]]  # (value from which the colour applies, colour); the first has no value
NEUTRAL: Steps = ((None, PLAIN),)


@dataclass(frozen=True, slots=True)
class Text:
    """A panel's title, description and unit, its size on the grid, and the range of its values."""

    title: str
    description: str
    unit: str
    width: int = 8
    height: int = 8
    no_value: str = ""
    decimals: int | None = None
    low: float | None = None
    high: float | None = None


def tile(
    title: str, description: str, unit: str, *, width: int = 4, no_value: str = "", decimals: int | None = None
) -> Text:
    """Returns the text of a small panel, six of which fill a line of the grid."""
    return Text(title, description, unit, width=width, height=4, no_value=no_value, decimals=decimals)


@dataclass(frozen=True, slots=True)
class Word:
    """A word that is shown instead of a value, and its colour."""

    text: str
    color: str


Words = Mapping[int, Word]


def panel_id(title: str) -> int:
    """Returns an id that depends on the title only, so that a panel keeps it wherever it moves."""
    return zlib.crc32(title.encode()) % 1_000_000 + 1


def single(text: Text, *queries: Query, steps: Steps = NEUTRAL, words: Words | None = None) -> stat.Panel:
    """Shows one value or a few, to be read at a glance; the colour says whether it is good."""
    panel = (
        _common(stat.Panel(), text, queries, steps, words)
        .color_mode(
            shape.BigValueColorMode.BACKGROUND_SOLID if words or len(steps) > 1 else shape.BigValueColorMode.VALUE
        )
        .graph_mode(shape.BigValueGraphMode.NONE)
        .justify_mode(shape.BigValueJustifyMode.CENTER)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    named = len(queries) > 1 or any("{{" in query.legend for query in queries)
    return panel.text_mode(shape.BigValueTextMode.VALUE_AND_NAME if named else shape.BigValueTextMode.VALUE)


def lines(
    text: Text,
    *queries: Query,
    steps: Steps = (),
    stacked: bool = False,
    percent: bool = False,
    colors: Mapping[str, str] | None = None,
    dashed: Sequence[str] = (),
    log: bool = False,
) -> timeseries.Panel:
    """Plots lines over time. `steps` draws thresholds as dashed lines with shaded ranges. `colors` and `dashed` select
    lines by a regular expression over the legend. Gaps are not bridged, so that a pause in the traffic is visible."""
    panel = _common(timeseries.Panel(), text, queries, steps or ((None, GOOD),), None)
    panel = (
        panel.color_scheme(build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
        .line_width(1.5)
        .fill_opacity(35 if stacked else 10 if _alone(queries) else 0)
        .show_points(shape.VisibilityMode.AUTO)
        .point_size(4)
        .span_nulls(False)
        .legend(
            common.VizLegendOptions()
            .display_mode(shape.LegendDisplayMode.LIST)
            .placement(shape.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(shape.TooltipDisplayMode.MULTI).sort(shape.SortOrder.DESCENDING))
    )
    if stacked:
        mode = shape.StackingMode.PERCENT if percent else shape.StackingMode.NORMAL
        panel = panel.stacking(common.StackingConfig().mode(mode).group("A"))
    if steps:
        panel = panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(shape.GraphThresholdsStyleMode.DASHED_AND_AREA)
        )
    values = [value for value, _ in steps if value is not None]
    if values and text.low is None:
        panel = panel.axis_soft_min(min(values))  # shows the threshold even where all values are good
    if text.low == 0 and text.high is None:
        panel = panel.axis_soft_max(max([*values, _LEAST.get(text.unit, 0)]))
    if log:
        scale = common.ScaleDistributionConfig().type(shape.ScaleDistribution.LOG).log(10)
        panel = panel.scale_distribution(scale)
    for pattern, color in (colors or {}).items():
        fixed = model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})
        panel = panel.override_by_regexp(f"/{pattern}/", [fixed])
    for pattern in dashed:
        style = model.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 6]})
        none = model.DynamicConfigValue(id_val="custom.fillOpacity", value=0)
        panel = panel.override_by_regexp(f"/{pattern}/", [style, none])
    return panel


def _alone(queries: Sequence[Query]) -> bool:
    """Returns True if there is only one line: only then does the area below it have a meaning."""
    return len(queries) == 1 and "{{" not in queries[0].legend


def bars(text: Text, *queries: Query, steps: Steps = NEUTRAL) -> bargauge.Panel:
    """Shows a bar for each series, over all the time shown."""
    return (
        _common(bargauge.Panel(), text, queries, steps, None)
        .display_mode(shape.BarGaugeDisplayMode.BASIC)
        .orientation(shape.VizOrientation.HORIZONTAL)
        .show_unfilled(True)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )


def states(text: Text, *bands: tuple[Query, Words]) -> statetimeline.Panel:
    """Shows states over time: a band for each series, coloured by state."""
    panel = (
        _common(statetimeline.Panel(), text, [query for query, _ in bands], NEUTRAL, None)
        .show_value(shape.VisibilityMode.AUTO)
        .merge_values(True)
        .row_height(0.85)
        .fill_opacity(80)
        .line_width(0)
        .legend(common.VizLegendOptions().show_legend(False))
    )
    for number, (_, words) in enumerate(bands):
        mapped = model.DynamicConfigValue(id_val="mappings", value=[_mapping(words)])
        panel = panel.override_by_query(_ref(number), [mapped])
    return panel


def spread(text: Text, query: Query) -> heatmap.Panel:
    """Shows a histogram's observations over time, as a heat map."""
    color = heatmap.HeatmapColorOptions().mode(heat.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64)
    return (
        _common(heatmap.Panel(), text, (query,), NEUTRAL, None)
        .calculate(False)
        .color(color.scale(heat.HeatmapColorScale.EXPONENTIAL).exponent(0.5))
        .y_axis(heatmap.YAxisConfig().unit(text.unit).axis_placement(shape.AxisPlacement.LEFT))
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .cell_gap(1)
        .show_legend()
    )


def _common(panel: _P, text: Text, queries: Sequence[Query], steps: Steps, words: Words | None) -> _P:
    panel = (
        panel.id(panel_id(text.title))
        .title(text.title)
        .description(text.description)
        .datasource(DATASOURCE)
        .span(text.width)
        .height(text.height)
        .unit(text.unit)
        .thresholds(
            build.ThresholdsConfig()
            .mode(model.ThresholdsMode.ABSOLUTE)
            .steps([model.Threshold(value=value, color=color) for value, color in steps])
        )
    )
    if words:
        panel = panel.mappings([_mapping(words)])
    if text.no_value:
        panel = panel.no_value(text.no_value)
    if text.decimals is not None:
        panel = panel.decimals(text.decimals)
    if text.low is not None:
        panel = panel.min(text.low)
    if text.high is not None:
        panel = panel.max(text.high)
    for number, query in enumerate(queries):
        panel = panel.with_target(_target(query, _ref(number)))
    return panel


def _mapping(words: Words) -> model.ValueMap:
    found = {
        str(value): model.ValueMappingResult(text=word.text, color=word.color, index=index)
        for index, (value, word) in enumerate(words.items())
    }
    return model.ValueMap(options=found)


def _ref(number: int) -> str:
    """Returns the name of a panel's query: A, B, …"""
    return chr(ord("A") + number)


def _target(query: Query, ref: str) -> prometheus.Dataquery:
    """Returns the query as Grafana's editor would save it in code mode."""
    kind = prom.PromQueryFormat.HEATMAP if query.heatmap else prom.PromQueryFormat.TIME_SERIES
    target = (
        prometheus.Dataquery()
        .ref_id(ref)
        .datasource(DATASOURCE)
        .editor_mode(prom.QueryEditorMode.CODE)
        .expr(query.expression)
        .legend_format(query.legend)
        .format(kind)
    )
    if query.instant:
        return target.instant()
    return target.range().exemplar(query.exemplar)
