package llm

import (
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policy"
)

// docs/llm.md, "Money": exact in millionths of a dollar, rounded up by answer; an unknown model is reported once, and keeps its estimate.
func TestPrices(t *testing.T) {
	t.Parallel()
	p, err := NewPrices(map[string]Price{
		"gpt-5.5":          {"input": 1.25, "cached": 0.125, "output": 10},
		"gpt-5.5-2026*":    {"input": 2, "output": 10},
		"gpt-5.5-*":        {"input": 3, "output": 10},
		"claude-sonnet-5*": {"input": 3, "cached": 0.3, "cache_write": 3.75, "cache_write_1h": 6, "output": 15},
		"claude-short*":    {"input": 3, "output": 15},
		"gemini*":          {"input": 0.000001, "output": 0.000001},
		"free":             {"input": 0, "output": 0},
	})
	if err != nil {
		t.Fatal(err)
	}
	var unknown []string
	p.OnUnknown = func(model string) { unknown = append(unknown, model) }
	chat := func(model string) string {
		return `{"model": "` + model + `", "usage": {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 100}}}`
	}
	claude := strings.ReplaceAll(answers["anthropic"].body, "claude-sonnet-5", "claude-short-1")
	for name, tt := range map[string]struct {
		body string
		want int64 // -1: no price, so that the tokens alone are known
	}{
		"by its name":             {chat("gpt-5.5"), 1238}, // 900 × 1.25 + 100 × 0.125 + 10 × 10 = 1237.5
		"the longest prefix":      {chat("gpt-5.5-2026-04-23"), 2100},
		"another prefix":          {chat("gpt-5.5-mini"), 3100},
		"free":                    {chat("free"), 0},
		"rounded up":              {answers["gemini"].body, 1},
		"caches":                  {answers["anthropic"].body, 150 + 300 + 750 + 600 + 300},
		"caches without a price":  {claude, -1},
		"an unknown model":        {chat("gpt-6"), -1},
		"again":                   {chat("gpt-6"), -1},
		"an answer without model": {answers["gemini, stream as a list"].body, -1},
	} {
		costs, known := p.Costs(as(200, strings.NewReader(tt.body)))
		cost, priced := costs[USD]
		if !known || costs[Tokens] == 0 || priced != (tt.want >= 0) || priced && cost != tt.want {
			t.Errorf("%s: %v, %t, want %d", name, costs, known, tt.want)
		}
	}
	if slices.Sort(unknown); !slices.Equal(unknown, []string{"", "claude-short-1", "gpt-6"}) {
		t.Errorf("reported %q", unknown)
	}
	if costs, known := p.Costs(as(500, strings.NewReader(chat("gpt-5.5")))); !known || text(costs, true) != "usd=0" {
		t.Errorf("an error: %v, %t", costs, known)
	}
	if _, known := Costs(as(500, strings.NewReader(chat("gpt-5.5")))); known {
		t.Error("an error without prices is known")
	}
	costs, _ := p.Costs(as(200, strings.NewReader(answers["openai chat"].body)))
	if units := policy.UsageUnits(); len(units) != len(costs) || slices.ContainsFunc(units, func(unit string) bool { _, is := costs[unit]; return !is }) {
		t.Errorf("%v, want %v", costs, units)
	}
	for want, bad := range map[string]Price{
		`"out" is no kind of tokens`: {"input": 1, "out": 1}, "input is -1; write US dollars": {"input": -1}, "0 to 1000": {"input": 1001},
		"six decimals": {"input": 0.0000001}, `"m" has no price of input`: {"output": 1},
	} {
		if _, err := NewPrices(map[string]Price{"m": bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
