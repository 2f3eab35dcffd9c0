package metrics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// "A scrape reads them": once in five seconds however many ask, and nothing while nobody does. After an error they are absent.
func TestShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads, fault := 0, error(nil)
		began := time.Now()
		m := New(Config{Snapshot: func(context.Context) (Snapshot, error) {
			reads++
			return Snapshot{
				Survey: throttle.Survey{At: began, Rules: []throttle.RuleSurvey{
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
			t.Errorf("%d reads, and nobody asked", reads)
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
			t.Error("series that nobody could read")
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
		s.Survey.Rules = append(s.Survey.Rules, throttle.RuleSurvey{Pattern: fmt.Sprint("p", i), Rule: "r\xff"})
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
