package policy

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestParseCosts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Costs{
		"tokens=1500":            {"tokens": 1500},
		"requests=1,tokens=1500": {"requests": 1, "tokens": 1500},
		"requests=0,tokens=1":    {"requests": 0, "tokens": 1},
		"tokens=0":               {"tokens": 0}, // one request
		"a-b_0=1000000000000":    {"a-b_0": 1e12},
	} {
		got, err := ParseCosts(text)
		if err != nil || !reflect.DeepEqual(got, want) || got.String() != text {
			t.Errorf("%s: %v %q %v", text, got, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                         `"" is not a unit and a whole number, such as tokens=1500`,
		"tokens":                   `"tokens" is not a unit and a whole number, such as tokens=1500`,
		"tokens=1e3":               `"tokens=1e3" is not a unit and a whole number, such as tokens=1500`,
		"tokens=+1":                `"tokens=+1" is not a unit and a whole number, such as tokens=1500`,
		"a=1,a=2":                  `"a" stands there twice`,
		"a=0,a=2":                  `"a" stands there twice`,
		"Tokens=1":                 `unit "Tokens" is no unit's name; write lower-case letters, digits, '-' and '_'`,
		"=1":                       `unit "" is empty; write a name such as tokens`,
		"tokens=-1":                `-1 tokens; write 0 to 1000000000000`,
		"requests=0":               `all are 0; what costs nothing needs no limit`,
		"requests=0,x=0":           `all are 0; what costs nothing needs no limit`,
		manyUnits(17):              `17 units; write 1 to 16`,
		longUnit(33) + "=1":        `unit "` + longUnit(33) + `" is 33 bytes long; the most is 32`,
		"tokens=1,a:b=1":           `unit "a:b" is no unit's name; write lower-case letters, digits, '-' and '_'`,
		"t=1000000000001":          `1000000000001 t; write 0 to 1000000000000`,
		"usd=0.02":                 `"usd=0.02" is not a whole number, such as usd=20000 for 2 cents`,
		"t=9999999999999999999999": `"t=9999999999999999999999" is not a unit and a whole number, such as tokens=1500`,
	} {
		if got, err := ParseCosts(text); err == nil || err.Error() != "throttle: costs: "+want {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
	if _, err := ParseCosts(manyUnits(16)); err != nil {
		t.Error(err)
	}
}

// docs/llm.md, "Units": people read dollars.
func TestAmount(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"1500 tokens": Amount(1500, "tokens"), "$50": Amount(50_000_000, USD), "$0.000001": Number(1, USD), "$999999.999999": Amount(MaxLimit-1, USD), "$0": Number(0, USD), "7": Number(7, Requests),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// docs/costs.md, "Names": a unit that no rule counts is most likely misspelt if it is like that of a rule which the costs lack.
func TestMisspelt(t *testing.T) {
	t.Parallel()
	rules := []MatchedRule{{Rule: Rule{Unit: "requests"}}, {Rule: Rule{Unit: "tokens"}}, {Rule: Rule{Algorithm: Concurrency}}}
	for want, all := range map[string][]Costs{
		"token for tokens": {{"token": 5}, {"images": 1, "token": 5}},
		" for ":            {nil, {"tokens": 5}, {"images": 1}, {"tokens": 5, "token": 5}, {"request": 1}},
	} {
		for _, costs := range all {
			if unit, meant := costs.Misspelt(rules); unit+" for "+meant != want {
				t.Errorf("%v: %s for %s", costs, unit, meant)
			}
		}
	}
}

// "the costs name a unit and all amounts are 0, requests included"
func TestCostsZero(t *testing.T) {
	t.Parallel()
	for want, all := range map[bool][]Costs{
		true:  {{Requests: 0}, {Requests: 0, "tokens": 0}},
		false: {nil, {}, {"tokens": 0}, {Requests: 0, "tokens": 1}, {Requests: 1}, {Requests: 0, "tokens": -1}}, // the third is one request
	} {
		for _, costs := range all {
			if costs.Zero() != want {
				t.Errorf("%v: %t", costs, !want)
			}
		}
	}
}

func manyUnits(n int) string {
	units := make([]string, n)
	for i := range units {
		units[i] = fmt.Sprintf("u%d=1", i)
	}
	return strings.Join(units, ",")
}

func longUnit(n int) string { return strings.Repeat("u", n) }
