package checker

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/redistest"
)

// epoch lies 250 ms into a second, so that aligned windows are not those that count from the first call.
var epoch = time.Unix(1_800_000_000, 250_000_000)

const ms = time.Millisecond

// one returns the limits of a single rule at payments.
func one(t *testing.T, rule string) *Limits {
	t.Helper()
	return parse(t, "limits: {payments: {rules: [{name: r, "+rule+"}]}}")
}

func parse(t *testing.T, text string) *Limits {
	t.Helper()
	l, err := ParseLimits([]byte(text))
	must(t, err)
	return l
}

// at makes calls of payments, each 1 ms long and of cost 1, with distinct ids.
func at(times ...time.Duration) []countapi.Call {
	var calls []countapi.Call
	for i, d := range times {
		calls = append(calls, countapi.Call{
			Seq: int64(i + 1), ID: fmt.Sprint("id", i), Scope: "payments", Cost: 1,
			Arrived: d, Departed: d + ms, Status: 200,
		})
	}
	return calls
}

// costing gives the calls their costs.
func costing(calls []countapi.Call, costs ...int64) []countapi.Call {
	for i := range calls {
		calls[i].Cost = costs[i]
	}
	return calls
}

func check(t *testing.T, in Input) *Report {
	t.Helper()
	in.Epoch = epoch
	r, err := Check(in)
	must(t, err)
	return r
}

// What TestAgainstBruteForce does not look for: each violation is planted beside a log that is exactly at the limit.
func TestPlantedViolationsAreFound(t *testing.T) {
	t.Parallel()
	const (
		bucket = "algorithm: token-bucket, limit: 3, per: 1s, burst: 2"
		unpaid = "algorithm: token-bucket, limit: 10, per: 1s, margin: 45ms" // 1 + 10 × (t + 50 ms)/1.05 s
		fixed  = "algorithm: fixed-window, limit: 2, per: 1s"
		onUse  = "algorithm: fixed-window, limit: 2, per: 1s, opens_on_use: true"
		third  = time.Second/3 + 1 // a third of a second, rounded up: when a unit of bucket is back
	)
	for name, tt := range map[string]struct {
		rule     string
		calls    []countapi.Call
		jitter   time.Duration
		worst    int64
		exceeded bool
	}{
		"on use within jitter":             {onUse, at(0, 0, ms, ms, 990*ms+1), 10 * ms, 3, false},
		"on use beyond jitter":             {onUse, at(0, 0, ms, ms, 990*ms), 10 * ms, 3, true},
		"bucket early after an hour":       {bucket, at(0, time.Hour, time.Hour, time.Hour+third-1), 0, 3, true},
		"bucket burst is 1 by default":     {"algorithm: token-bucket, limit: 3, per: 1s", at(0, 0), 0, 2, true},
		"bucket limit 0":                   {"algorithm: token-bucket, limit: 0, per: 1s", at(0), 0, 1, true},
		"bucket pays a margin with per":    {unpaid, at(0, 55*ms, 160*ms), 0, 3, false},
		"and is then early by 1 ns":        {unpaid, at(0, 55*ms-1, 160*ms), 0, 3, true},
		"bucket pays a margin with burst":  {unpaid + ", burst: 2", at(0, 0, 100*ms), 0, 3, false},
		"and is early by 1 ns":             {unpaid + ", burst: 2", at(0, 0, 100*ms-1), 0, 3, true},
		"bucket of a month":                {"algorithm: token-bucket, limit: 1, per: 30d", at(0, 30*24*time.Hour), 0, 1, false},
		"bucket of a month, early by 1 ns": {"algorithm: token-bucket, limit: 1, per: 30d", at(0, 30*24*time.Hour-1), 0, 2, true},
		// The epoch is 250 ms into a second: windows begin at 750 ms, 1750 ms, …
		"fixed within jitter":               {fixed, at(749*ms, 755*ms, 756*ms, 800*ms), 10 * ms, 3, false},
		"fixed jitter has no more room":     {fixed, at(748*ms, 749*ms, 755*ms, 756*ms, 800*ms), 10 * ms, 3, true},
		"fixed jitter fills what it enters": {fixed, at(755*ms, 756*ms, 757*ms, 800*ms, 801*ms), 10 * ms, 5, true},
		"fixed jitter into an empty window": {fixed, at(755*ms, 756*ms, 800*ms, 801*ms), 10 * ms, 4, false},
	} {
		slices.Reverse(tt.calls) // the order of the log does not matter
		r := check(t, Input{Limits: one(t, tt.rule), Calls: tt.calls, Jitter: tt.jitter})
		row, says := r.Rows[0], r.Violations()
		if row.Worst != tt.worst || row.Exceeded != tt.exceeded || r.Exceeded() != tt.exceeded || r.OK() == tt.exceeded || (len(says) > 0) != tt.exceeded {
			t.Errorf("%s: %+v, %q; want the worst %d, and exceeded %t", name, row, says, tt.worst, tt.exceeded)
		}
	}
}

func TestExcessOfABucketIsExact(t *testing.T) {
	t.Parallel()
	l := one(t, "algorithm: token-bucket, limit: 2, per: 1s, burst: 3")
	r := check(t, Input{Limits: l, Calls: at(0, 0, 0, 250*ms, time.Second)})
	if got := *r.Rows[0].Excess; got != 0.5 {
		t.Errorf("excess %v units, want 0.5: four calls in 250 ms, where 3.5 are admitted", got)
	}
	if b := r.Rows[0].Bound; b != 5 {
		t.Errorf("bound %d, want burst + limit = 5", b)
	}
	if got := *check(t, Input{Limits: l, Calls: at(0)}).Rows[0].Excess; got != -2 {
		t.Errorf("excess %v, want -2", got)
	}
}

func TestWhatCannotBeJudgedIsAnError(t *testing.T) {
	t.Parallel()
	l := one(t, "algorithm: sliding-window, limit: 1, per: 10ms")
	bad := at(5)
	bad[0].Departed = 4
	free := at(5)
	free[0].Cost = 0
	for name, in := range map[string]Input{
		"no limits":       {Calls: at(0)},
		"jitter of per":   {Limits: l, Calls: at(0), Jitter: 10 * ms},
		"negative jitter": {Limits: l, Calls: at(0), Jitter: -1},
		"ends too early":  {Limits: l, Calls: bad},
		"no cost":         {Limits: l, Calls: free},
	} {
		if r, err := Check(in); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestFilesThatTheCheckerDoesNotUnderstandAreRefused(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty":              "",
		"not yaml":           "limits: [",
		"unknown at the top": "limit: {}",
		"unknown in a node":  "limits: {a: {rule: []}}",
		"unknown in a rule":  "limits: {a: {rules: [{name: r, algorithm: concurrency, limit: 1, colour: red}]}}",
		"unknown algorithm":  "limits: {a: {rules: [{name: r, algorithm: gcra, limit: 1, per: 1s}]}}",
		"no limit":           "limits: {a: {rules: [{name: r, algorithm: concurrency}]}}",
		"no per":             "limits: {a: {rules: [{name: r, algorithm: fixed-window, limit: 1}]}}",
		"no name":            "limits: {a: {rules: [{algorithm: concurrency, limit: 1}]}}",
		"bad unmatched":      "unmatched: maybe",
		"bad hours":          `limits: {a: {rules: [{name: r, algorithm: concurrency, limit: 1, active: "@daily"}]}}`,
		"hours in no zone":   `limits: {a: {rules: [{name: r, algorithm: concurrency, limit: 1, active: "* 8 * * *", timezone: Mars}]}}`,
		"bad pause":          "limits: {a: {paused: often}}",
		"bad end of a pause": "limits: {a: {paused: true, paused_until: tomorrow}}",
		"bad per":            "limits: {a: {rules: [{name: r, algorithm: fixed-window, limit: 1, per: soon}]}}",
		"rules no list":      "limits: {a: {rules: {name: r}}}",
		"no resets":          "limits: {a: {rules: [{name: r, algorithm: calendar, limit: 1}]}}",
		"few fields":         `limits: {a: {rules: [{name: r, algorithm: calendar, limit: 1, resets: "0 0 * *"}]}}`,
		"every hour":         `limits: {a: {rules: [{name: r, algorithm: calendar, limit: 1, resets: "@every 1h"}]}}`,
		"two zones":          `limits: {a: {rules: [{name: r, algorithm: calendar, limit: 1, resets: "TZ=UTC 0 0 * * *"}]}}`,
		"bad zone":           `limits: {a: {rules: [{name: r, algorithm: calendar, limit: 1, resets: "@daily", timezone: Nowhere/Here}]}}`,
		"resets of places":   `limits: {a: {rules: [{name: r, algorithm: concurrency, limit: 1, resets: "@daily"}]}}`,
		"per of a calendar":  `limits: {a: {rules: [{name: r, algorithm: calendar, limit: 1, resets: "@daily", per: 1s}]}}`,
		"merge key":          "limits: {a: &a {rules: []}, b: {<<: *a}}",
	} {
		if _, err := ParseLimits([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for name, text := range map[string]string{"no id": `{"scope":"a"}`, "no scope": `{"id":"a"}`, "not JSON": "x", "a cost": `{"id":"a","scope":"a","cost":"1"}`, "a unit": `{"id":"a","scope":"a","cost":{"tokens":"1"}}`} {
		if _, err := ReadTasks(strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

var must = redistest.Must

func TestWhatBecameOfEachTask(t *testing.T) {
	t.Parallel()
	tasks, err := ReadTasks(strings.NewReader(`{"id":"id0","scope":"payments"}
{"id":"id1","scope":"payments","max_retry":0,"cost":1,"http":{"url":"x"}}
{"id":"id2","scope":"payments","max_retry":1}
{"id":"id2","scope":"other"}
`))
	if err != nil || len(tasks) != 3 {
		t.Fatal(tasks, err)
	}
	l := one(t, "algorithm: sliding-window, limit: 100, per: 1s")
	type want struct {
		lost, duplicates, unknown, mismatched, over []string
	}
	for name, tt := range map[string]struct {
		n      int                    // the call that is changed, of three
		change func(c *countapi.Call) // nil: it is not there
		twice  bool                   // the call comes once more, as it was
		want   want
	}{
		"all well":                  {0, func(*countapi.Call) {}, false, want{}},
		"lost":                      {0, nil, false, want{lost: []string{"id0"}}},
		"failed for good":           {1, func(c *countapi.Call) { c.Status = 500 }, false, want{lost: []string{"id1"}}},
		"never answered":            {1, func(c *countapi.Call) { c.Status = 0 }, false, want{lost: []string{"id1"}}},
		"succeeded twice":           {2, func(*countapi.Call) {}, true, want{duplicates: []string{"id2"}}},
		"retried within its budget": {2, func(c *countapi.Call) { c.Status = 503 }, true, want{}},
		"retried beyond its budget": {1, func(c *countapi.Call) { c.Status = 503 }, true, want{over: []string{"id1"}}},
		"unknown":                   {1, func(c *countapi.Call) { c.ID = "stranger" }, true, want{unknown: []string{"stranger"}}},
		"nameless":                  {1, func(c *countapi.Call) { c.ID = "" }, true, want{unknown: []string{""}}},
		"another cost":              {0, func(c *countapi.Call) { c.Cost = 2 }, false, want{mismatched: []string{"id0"}}},
		"another scope":             {0, func(c *countapi.Call) { c.Scope = "payments/acme" }, false, want{mismatched: []string{"id0"}}},
	} {
		calls := at(0, 1, 2)
		if tt.twice {
			calls = append(calls, calls[tt.n])
		}
		if tt.change != nil {
			tt.change(&calls[tt.n])
		} else {
			calls = slices.Delete(calls, tt.n, tt.n+1)
		}
		r := check(t, Input{Limits: l, Calls: calls, Tasks: tasks})
		got := want{r.Lost, r.Duplicates, r.Unknown, r.Mismatched, r.OverBudget}
		if fmt.Sprint(got) != fmt.Sprint(tt.want) || r.OK() != reflect.DeepEqual(tt.want, want{}) || (len(r.Violations()) == 0) != r.OK() {
			t.Errorf("%s: %q, want %q; violations %q", name, got, tt.want, r.Violations())
		}
		if r.Exceeded() || r.Rows[0].Lost != len(tt.want.lost) || r.Rows[0].Tasks != 3 {
			t.Errorf("%s: row %+v", name, r.Rows[0])
		}
	}
}

func TestTasksThatNeverArriveHaveARow(t *testing.T) {
	t.Parallel()
	const rule = "{rules: [{name: r, algorithm: concurrency, limit: 1}]"
	limits := parse(t, "limits: {payments: "+rule+", scopes: {'*': "+rule+"}}}}")
	r := check(t, Input{Limits: limits, Tasks: []Task{{ID: "a", Scope: "payments/bob", Cost: 1}}})
	if len(r.Rows) != 2 || r.Rows[1].Scope != "payments/bob" || r.Rows[1].Lost != 1 || r.Rows[1].Calls != 0 {
		t.Errorf("%+v", r.Rows)
	}
}

// The definitions in the package comment, on logs whose share is plain to see.
func TestShareOfTheQuotaUsed(t *testing.T) {
	t.Parallel()
	every := func(step time.Duration, n int) []countapi.Call {
		var times []time.Duration
		for i := range n {
			times = append(times, 100*ms+time.Duration(i)*step)
		}
		return at(times...)
	}
	retry := every(100*ms, 21) // a retry that slept for a minute is no backlog
	late := retry[0]
	late.Arrived, late.Departed = time.Minute, time.Minute+ms
	for name, tt := range map[string]struct {
		rule  string
		calls []countapi.Call
		want  string
	}{
		"sliding, paced":             {"algorithm: sliding-window, limit: 10, per: 1s", every(100*ms, 21), "1.000"},
		"sliding, in bursts":         {"algorithm: sliding-window, limit: 2, per: 1s", at(0, 0, time.Second, time.Second, 2*time.Second), "1.000"},
		"sliding, half":              {"algorithm: sliding-window, limit: 20, per: 1s", every(100*ms, 21), "0.500"},
		"sliding, then a late retry": {"algorithm: sliding-window, limit: 10, per: 1s", append(retry, late), "1.000"},
		"sliding, shorter than per":  {"algorithm: sliding-window, limit: 20, per: 1m", every(100*ms, 21), "-"},
		"bucket, burst and pace":     {"algorithm: token-bucket, limit: 10, per: 1s, burst: 1", every(100*ms, 21), "1.000"},
		"bucket, half the pace":      {"algorithm: token-bucket, limit: 20, per: 1s, burst: 2", every(100*ms, 21), "0.500"},
		"bucket, one call":           {"algorithm: token-bucket, limit: 20, per: 1s, burst: 2", at(0), "-"},
		// Windows begin at 750 ms past a second: 7, 10 and 4 of the 21.
		"fixed":                {"algorithm: fixed-window, limit: 10, per: 1s", every(100*ms, 21), "0.850"},
		"fixed, one window":    {"algorithm: fixed-window, limit: 10, per: 1s", at(0, 1, 2), "-"},
		"concurrency, full":    {"algorithm: concurrency, limit: 1", at(0, ms, 2*ms), "1.000"},
		"concurrency, half":    {"algorithm: concurrency, limit: 2", at(0, ms, 2*ms), "0.500"},
		"concurrency, instant": {"algorithm: concurrency, limit: 2", at(5), "-"},
		"suspended":            {"algorithm: sliding-window, limit: 0, per: 1s", at(0, time.Minute), "-"},
	} {
		r := check(t, Input{Limits: one(t, tt.rule), Calls: tt.calls})
		if got := number("%.3f", r.Rows[0].Used, 1); got != tt.want {
			t.Errorf("%s: used %s, want %s", name, got, tt.want)
		}
	}
}
