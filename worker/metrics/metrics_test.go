package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/survey"
)

func scrape(t *testing.T, m *Metrics, accept ...string) string {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header["Accept"] = accept
	m.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func wantLines(t *testing.T, page string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(page, l+"\n") {
			name, _, _ := strings.Cut(l, "{")
			t.Errorf("no line %s\ngot: %s", l, strings.Join(regexp.MustCompile("(?m)^"+name+".*$").FindAllString(page, -1), "\n     "))
		}
	}
}

func one(pattern, rule string) throttle.Decision {
	return throttle.Decision{Rules: []throttle.RuleState{{RuleInfo: &throttle.RuleInfo{Pattern: pattern, Rule: rule}}}}
}

// Shadow rules are counted by their place in the policy and their outcome.
func TestShadowed(t *testing.T) {
	t.Parallel()
	m := New(Config{})
	m.shadowRules = newLabels(1)
	count := func(pattern string, outcome throttle.ShadowOutcome, wait time.Duration) {
		m.Shadowed(throttle.Shadowed{Outcome: outcome, RuleState: throttle.RuleState{
			RuleInfo: &throttle.RuleInfo{Scope: "payments/acme", Pattern: pattern, Rule: "trial"}, Limited: wait > 0, RetryAfter: wait,
		}})
	}
	count("payments/*", throttle.ShadowAllowed, 0)
	count("payments/*", throttle.ShadowDenied, 2*time.Second)
	count("payments/*", throttle.ShadowDenied, throttle.Never)
	count("payments/*", throttle.ShadowDropped, 0)
	count("payments/*", throttle.ShadowFailed, 0)
	count("search", throttle.ShadowAllowed, 0)
	page := scrape(t, m)
	wantLines(t, page,
		`headway_shadow_decisions_total{outcome="allowed",rule="payments/*:trial"} 1`,
		`headway_shadow_decisions_total{outcome="denied",rule="payments/*:trial"} 2`,
		`headway_shadow_decisions_total{outcome="dropped",rule="payments/*:trial"} 1`,
		`headway_shadow_decisions_total{outcome="error",rule="payments/*:trial"} 1`,
		`headway_shadow_decisions_total{outcome="allowed",rule="other"} 1`,
		`headway_shadow_wait_seconds_count{rule="payments/*:trial"} 1`,
		`headway_shadow_wait_seconds_sum{rule="payments/*:trial"} 2`,
	)
	if strings.Contains(page, "acme") {
		t.Error("a label holds a tenant")
	}
}

var _ throttle.Observer = (*Metrics)(nil)

// Decisions are counted by the place of a rule in the policy, never by the tenant that a star stood for.
func TestDecided(t *testing.T) {
	t.Parallel()
	m := New(Config{})
	account := throttle.RuleState{RuleInfo: &throttle.RuleInfo{Scope: "payments", Pattern: "payments", Rule: "account"}}
	refunds := throttle.RuleState{RuleInfo: &throttle.RuleInfo{Scope: "payments/acme/refunds", Pattern: "payments/*/refunds", Rule: "refunds"}}
	full := refunds
	full.Limited, full.RetryAfter = true, 2*time.Second
	suspended := full
	suspended.RetryAfter = throttle.Never
	decided := func(degraded bool, took time.Duration, rules ...throttle.RuleState) {
		m.Decided(context.Background(), throttle.Decision{Rules: rules, Degraded: degraded}, took, nil)
	}
	decided(false, 2*time.Millisecond, account, refunds)
	decided(false, time.Millisecond, account, full)
	decided(false, time.Millisecond, account, suspended)
	decided(true, time.Second, account)
	decided(true, time.Second, full)
	m.Decided(context.Background(), throttle.Decision{Rules: []throttle.RuleState{account}, Handed: true}, 0, nil) // no call was made
	m.Decided(context.Background(), throttle.Decision{}, time.Second, throttle.ErrUnavailable)
	m.Decided(context.Background(), throttle.Decision{}, time.Second, fmt.Errorf("stopped: %w", context.Canceled))
	page := scrape(t, m)
	if strings.Contains(page, "acme") {
		t.Error("a label holds a tenant")
	}
	wantLines(t, page,
		`headway_decisions_total{outcome="allowed",rule="payments:account"} 4`,
		`headway_decisions_total{outcome="denied",rule="payments:account"} 0`,
		`headway_decisions_total{outcome="degraded",rule="payments:account"} 1`,
		`headway_decisions_total{outcome="denied",rule="payments/*/refunds:refunds"} 2`,
		`headway_decisions_total{outcome="degraded",rule="payments/*/refunds:refunds"} 1`,
		`headway_decisions_total{outcome="error",rule="none"} 1`,
		`headway_denials_total{rule="payments/*/refunds:refunds"} 3`,
		`headway_denials_total{rule="payments:account"} 0`,
		`headway_wait_seconds_bucket{rule="payments/*/refunds:refunds",le="1"} 0`,
		`headway_wait_seconds_bucket{rule="payments/*/refunds:refunds",le="3"} 2`,
		`headway_wait_seconds_count{rule="payments/*/refunds:refunds"} 2`,
		`headway_decision_seconds_count 7`,
		`headway_decision_seconds_bucket{le="0.003"} 3`,
	)
}

// Tiers that are not known are counted by why, and no label has a customer's name or a tier.
func TestTierTroubles(t *testing.T) {
	t.Parallel()
	m := New(Config{})
	m.TierTrouble(throttle.TierTrouble{Name: "p/acme", Tier: "gold", Err: errors.New("no connection")})
	m.TierTrouble(throttle.TierTrouble{Name: "p/acme", Unknown: "silver"})
	m.TierTrouble(throttle.TierTrouble{Name: "p/bob", Unknown: "silver"})
	wantLines(t, scrape(t, m), `headway_tier_troubles_total{why="error"} 1`, `headway_tier_troubles_total{why="unknown"} 2`)
}

// Starts are counted by the members of pools, at the pool's place in the policy.
func TestMemberStarts(t *testing.T) {
	t.Parallel()
	m := New(Config{})
	for _, d := range []throttle.Decision{
		{Allowed: true, Pool: "github", Member: "alice"}, {Allowed: true, Pool: "github", Member: "alice", Handed: true},
		{Pool: "github", Member: "alice"}, {Allowed: true, Pool: "tenants/*", Member: "bob"}, {Allowed: true},
	} {
		m.Decided(context.Background(), d, time.Millisecond, nil)
	}
	wantLines(t, scrape(t, m), `headway_member_starts_total{member="github/@alice"} 2`, `headway_member_starts_total{member="tenants/*/@bob"} 1`)
}

func TestTasks(t *testing.T) {
	t.Parallel()
	m := New(Config{Version: "v1"})
	m.PickedUp("default")
	m.PickedUp("default")
	m.PickedUp("low")
	m.Ran(context.Background(), "default", "done", 2*time.Second)
	m.Ran(context.Background(), "default", "failed", time.Millisecond)
	m.Rescheduled("low", 40*time.Second)
	m.Holding(1)
	m.Holding(1)
	m.Holding(-1)
	m.Held(20 * time.Millisecond)
	m.Began(7 * time.Millisecond)
	m.LeaseHeld("search:parallel", 1)
	m.LeaseHeld("search:parallel", 1)
	m.LeaseHeld("search:parallel", -1)
	m.Failed("release")
	for _, up := range []bool{true, false, true, false} {
		m.RedisUp(up)
	}
	wantLines(t, scrape(t, m),
		`headway_pickups_total{queue="default"} 2`,
		`headway_pickups_total{queue="low"} 1`,
		`headway_runs_total{outcome="done",queue="default"} 1`,
		`headway_runs_total{outcome="failed",queue="default"} 1`,
		`headway_run_seconds_count{queue="default"} 2`,
		`headway_rescheduled_total{queue="low"} 1`,
		`headway_rescheduled_seconds_bucket{queue="low",le="60"} 1`,
		`headway_held 1`,
		`headway_hold_seconds_count 1`,
		`headway_start_lateness_seconds_bucket{le="0.005"} 0`,
		`headway_start_lateness_seconds_bucket{le="0.01"} 1`,
		`headway_leases{rule="search:parallel"} 1`,
		`headway_errors_total{kind="release"} 1`,
		`headway_redis_up 0`,
		`headway_redis_outages_total 2`,
		`headway_build_info{version="v1"} 1`,
	)
}

// TestBounded holds that labels are bounded: "Rules beyond the first thousand are counted together as rule="other"".
func TestBounded(t *testing.T) {
	t.Parallel()
	m := New(Config{})
	const rules = 1500
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := g; i < rules; i += 4 {
				m.Decided(context.Background(), one(fmt.Sprintf("p%d", i), "r"), time.Millisecond, nil)
				m.PickedUp(fmt.Sprintf("q%d", i))
			}
		})
	}
	wg.Wait()
	page := scrape(t, m)
	for pattern, want := range map[string]int{
		`headway_decisions_total\{outcome="allowed",rule="`: 1001,
		`headway_pickups_total\{`:                           maxQueues + 1,
	} {
		if n := len(regexp.MustCompile("(?m)^"+pattern).FindAllString(page, -1)); n != want {
			t.Errorf("%s: %d series, want %d", pattern, n, want)
		}
	}
	wantLines(t, page, `headway_decisions_total{outcome="allowed",rule="other"} 500`)
	m.LeaseHeld("p9999:r", 1) // a rule that came too late
	wantLines(t, scrape(t, m), `headway_leases{rule="other"} 1`)
}

// TestPollAges holds that the age of a poll grows by itself, that of providers with one
// label the oldest counts, and that it is "absent if no task waits".
func TestPollAges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		m.DispatcherPolled("payments", "payments", 0)
		m.DispatcherPolled("a customer", "*", 0)
		<-time.After(3 * time.Second)
		m.DispatcherPolled("another", "*", 0)
		<-time.After(1500 * time.Millisecond)
		wantLines(t, scrape(t, m), `headway_dispatcher_last_poll_age_seconds{provider="payments"} 4.5`, `headway_dispatcher_last_poll_age_seconds{provider="*"} 4.5`)
		m.DispatcherPolled("payments", "payments", 0)
		m.DispatcherPolled("a customer", "*", -1)
		wantLines(t, scrape(t, m), `headway_dispatcher_last_poll_age_seconds{provider="payments"} 0`, `headway_dispatcher_last_poll_age_seconds{provider="*"} 1.5`)
		m.DispatcherPolled("payments", "payments", -1)
		m.DispatcherPolled("another", "*", -1)
		if page := scrape(t, m); strings.Contains(page, "headway_dispatcher_last_poll_age_seconds{") {
			t.Error("no task waits, and the age of a poll is there")
		}
	})
}

// Refused tasks that are away are a gauge, which falls by itself when they come again.
func TestRefusedTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		m.Refused("default", "unmatched", 10*time.Second)
		m.Refused("default", "unmatched", 20*time.Second)
		m.Refused("low", "cost", 10*time.Second)
		wantLines(t, scrape(t, m), `headway_refused_tasks{queue="default",why="unmatched"} 2`, `headway_refused_tasks{queue="low",why="cost"} 1`,
			`headway_refused_total{queue="default",why="unmatched"} 2`)
		<-time.After(13 * time.Second)
		wantLines(t, scrape(t, m), `headway_refused_tasks{queue="default",why="unmatched"} 1`)
		<-time.After(10 * time.Second)
		if page := scrape(t, m); strings.Contains(page, "headway_refused_tasks{") {
			t.Error("no task waits, and some are counted")
		}
		for range 1000 {
			m.Refused("default", "cost", 10*time.Second)
			<-time.After(time.Second)
		}
		if n := len(m.away.due[refusedTasks{"default", "cost"}]); n > maxSeconds+1 {
			t.Errorf("without a scrape %d seconds are remembered", n)
		}
	})
}

// "The label trace_id of a bucket is the trace of one wait or run in it", in OpenMetrics alone.
func TestExemplars(t *testing.T) {
	t.Parallel()
	type key struct{}
	m := New(Config{TraceID: func(ctx context.Context) string {
		id, _ := ctx.Value(key{}).(string)
		return id
	}})
	in := func(id string) context.Context { return context.WithValue(context.Background(), key{}, id) }
	denied := one("payments", "account")
	denied.Allowed, denied.Rules[0].Limited, denied.Rules[0].RetryAfter = false, true, 2*time.Second
	m.Decided(in("aaaa"), denied, time.Millisecond, nil)
	m.Decided(in("never"), one("payments", "account"), time.Millisecond, nil)
	m.Ran(in("bbbb"), "default", "ok", 20*time.Millisecond)
	m.Ran(in(""), "default", "ok", 2*time.Second)
	for _, id := range []string{strings.Repeat("x", 200), "\xff"} { // what an exemplar cannot have
		m.Ran(in(id), "default", "ok", 20*time.Minute)
	}
	page := scrape(t, m, "application/openmetrics-text; version=1.0.0")
	for _, pattern := range []string{
		`headway_wait_seconds_bucket\{rule="payments:account",le="3.0"\} 1 # \{trace_id="aaaa"\} 2.0 `,
		`headway_run_seconds_bucket\{queue="default",le="0.03"\} 1 # \{trace_id="bbbb"\} 0.02 `,
		`headway_run_seconds_bucket\{queue="default",le="3.0"\} 2\n`,
		`headway_run_seconds_count\{queue="default"\} 4\n`,
	} {
		if !regexp.MustCompile(pattern).MatchString(page) {
			t.Errorf("no %s", pattern)
		}
	}
	if n := strings.Count(page, "trace_id"); n != 2 {
		t.Errorf("%d exemplars, want 2", n)
	}
	if strings.Contains(scrape(t, m), "trace_id") {
		t.Error("the text format has exemplars")
	}
}

// "A scrape reads them": once in five seconds however many ask, and none without a scrape. After an error they are absent.
func TestShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads, fault := 0, error(nil)
		began := time.Now()
		m := New(Config{Snapshot: func(context.Context) (Snapshot, error) {
			reads++
			return Snapshot{
				Survey: survey.Survey{At: began, Rules: []survey.Rule{
					{Pattern: "payments", Rule: "account", Algorithm: policy.SlidingWindow, Limit: 200, Read: true, Used: 150, Waiting: 40, DoneIn: 90 * time.Second},
					{Pattern: "payments/*", Rule: "tenant", Algorithm: policy.TokenBucket, Limit: 5, Waiting: 3, DoneIn: throttle.Never},
					{Pattern: "search", Rule: "plan", Algorithm: policy.FixedWindow, Limit: 1000, Read: true},
				}},
				Oldest:        []time.Time{began.Add(-time.Minute), {}, {}},
				Queues:        []QueueTasks{{"default", 7, 4}, {"low", 0, 1}},
				UsefulWorkers: 1.5, PolicyVersion: 12,
			}, fault
		}})
		<-time.After(time.Hour)
		if reads != 0 {
			t.Errorf("%d reads without a scrape", reads)
		}
		began = time.Now()
		page := scrape(t, m)
		wantLines(t, page,
			`headway_shared_rule_limit{rule="payments:account"} 200`,
			`headway_shared_rule_used{rule="payments:account"} 150`,
			`headway_shared_rule_waiting{rule="payments:account"} 40`,
			`headway_shared_rule_oldest_wait_seconds{rule="payments:account"} 60`,
			fmt.Sprintf(`headway_shared_rule_done_timestamp_seconds{rule="payments:account"} %v`, float64(began.Unix()+90)),
			`headway_shared_rule_waiting{rule="payments/*:tenant"} 3`,
			`headway_shared_rule_used{rule="search:plan"} 0`,
			`headway_shared_runnable_tasks{queue="default"} 7`,
			`headway_shared_active_tasks{queue="low"} 1`,
			`headway_shared_useful_workers 1.5`,
			`headway_shared_policy_version 12`,
			`headway_shared_partial 0`,
		)
		for _, absent := range []string{`used{rule="payments/*`, `done_timestamp_seconds{rule="search`, `done_timestamp_seconds{rule="payments/*`, `oldest_wait_seconds{rule="search`} {
			if strings.Contains(page, absent) {
				t.Errorf("%s is not known, and is there", absent)
			}
		}
		<-time.After(4 * time.Second)
		wantLines(t, scrape(t, m), `headway_shared_rule_oldest_wait_seconds{rule="payments:account"} 64`) // it goes on without a read
		if reads != 1 {
			t.Errorf("%d reads in four seconds", reads)
		}
		<-time.After(2 * time.Second)
		if scrape(t, m); reads != 2 {
			t.Errorf("%d reads in six seconds", reads)
		}
		fault = errors.New("Redis is away")
		<-time.After(6 * time.Second)
		if page := scrape(t, m); strings.Contains(page, "headway_shared_") || !strings.Contains(page, "headway_policy_version") {
			t.Error("series of a snapshot that failed")
		}
		if page := scrape(t, m); strings.Contains(page, "headway_shared_") || reads != 4 { // an error is not kept
			t.Errorf("%d reads, the last two in vain", reads)
		}
		fault = nil
		wantLines(t, scrape(t, m), `headway_shared_policy_version 12`)
	})
}

// "At most a thousand rules and a hundred queues": headway_shared_partial says that there are more.
func TestSharedIsBounded(t *testing.T) {
	t.Parallel()
	var s Snapshot
	for i := range 1200 {
		s.Survey.Rules = append(s.Survey.Rules, survey.Rule{Pattern: fmt.Sprint("p", i), Rule: "r\xff"})
		s.Queues = append(s.Queues, QueueTasks{Name: fmt.Sprint("q\xff", i)})
	}
	page := scrape(t, New(Config{Snapshot: func(context.Context) (Snapshot, error) { return s, nil }}))
	for name, want := range map[string]int{"headway_shared_rule_limit{": 1000, "headway_shared_runnable_tasks{": maxQueues} {
		if n := strings.Count(page, "\n"+name); n != want {
			t.Errorf("%d of %s, want %d", n, name, want)
		}
	}
	wantLines(t, page, "headway_shared_partial 1")
}
