package checker

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/countapi"
)

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

func TestPickUpsATask(t *testing.T) {
	t.Parallel()
	r := check(t, Input{
		Limits: one(t, "algorithm: concurrency, limit: 100"), Calls: at(0, 1, 2, 3),
		PickUps: map[string]float64{"": 6, "payments": 5},
	})
	if *r.PickUps != 1.5 || *r.Rows[0].PickUps != 1.25 {
		t.Errorf("%v over all, %v of the row", *r.PickUps, *r.Rows[0].PickUps)
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
