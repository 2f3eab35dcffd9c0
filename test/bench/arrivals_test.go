//go:build unix

package bench

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// "A busy machine may lower what is used; it may not exceed a limit." Two built workers under a sliding window: beside programs that
// hog the processors, after a worker or Redis stood still, and in a cluster whose master is replaced. Whatever happens, no
// window that is shortened by 20 ms holds more calls than the limit.
func TestNeverOverAtTheAPI(t *testing.T) {
	if !long() {
		t.Skip("it takes five minutes, in which nothing else may run; make soak runs it")
	}
	for _, limit := range []int64{50, 500} {
		for _, trouble := range []struct {
			name   string
			strike func(*arrivals)
		}{
			{"three hogs", (*arrivals).besideHogs},
			{"a worker frozen", (*arrivals).freezeWorker},
			{"Redis frozen", (*arrivals).freezeRedis},
			{"a cluster's failover", (*arrivals).failOver},
		} {
			t.Run(fmt.Sprintf("%d a second, %s", limit, trouble.name), func(t *testing.T) {
				a := &arrivals{T: t, limit: limit}
				trouble.strike(a)
				a.judge()
			})
		}
	}
}

// frozen is for how long workers and Redis stand still.
const frozen = 20 * time.Second

// arrivals are the calls of two built workers under one sliding window.
type arrivals struct {
	*testing.T
	run    *built
	limit  int64
	policy *policy.Policy
	struck time.Duration // when the trouble began, by the API's clock
}

func (a *arrivals) besideHogs() {
	a.begin("redis://" + redistest.NewServer(a.T).Addr())
	defer hogs(a.T, 3)()
	a.strikes()
	a.flows(20 * time.Second)
}

func (a *arrivals) freezeWorker() {
	a.begin("redis://" + redistest.NewServer(a.T).Addr())
	a.strikes()
	a.run.workers[0].Signal(syscall.SIGSTOP)
	<-time.After(frozen)
	a.run.workers[0].Signal(syscall.SIGCONT)
	a.flows(10 * time.Second)
}

func (a *arrivals) freezeRedis() {
	server := redistest.NewServer(a.T)
	a.begin("redis://" + server.Addr())
	a.strikes()
	server.Freeze(a.T)
	<-time.After(frozen)
	server.Thaw(a.T)
	a.flows(10 * time.Second)
}

func (a *arrivals) failOver() {
	set := redistest.NewCluster(a.T)
	a.begin(set.URL())
	a.strikes()
	set.Owner("{p}").Kill9()
	redistest.WaitAsking(a.T, "Redis to take writes", programs.Bound, func() bool { return set.TakesWrite("{p}probe") })
	a.flows(10 * time.Second)
}

// begin enqueues tasks for a minute, starts the workers and waits until five seconds of calls have arrived.
func (a *arrivals) begin(redisURL string) {
	a.Helper()
	api, err := countapi.Start("127.0.0.1:0")
	must(a, err)
	a.Cleanup(func() { _ = api.Close() })
	s := single("", int(60*a.limit), sliding("r", a.limit, time.Second))
	a.policy, err = policy.New(policy.UnmatchedDeny, s.limits)
	must(a, err)
	a.run = newBuilt(a.T, a.policy, api, latency)
	a.run.enqueue(redisURL, s.tasks)
	a.run.batch.Ends(0)
	a.run.work(2, redisURL, 100)
	a.flows(5 * time.Second)
}

// strikes waits until a call arrives, since others begin then too, and notes that the trouble begins.
func (a *arrivals) strikes() {
	a.Helper()
	a.flows(0)
	a.struck = time.Since(a.run.api.Epoch())
}

// flows waits until as many more calls have arrived as the limit admits in some time, one at least.
func (a *arrivals) flows(d time.Duration) {
	a.Helper()
	before, _ := a.run.api.Counts()
	want := before + max(1, int(float64(a.limit)*d.Seconds()))
	redistest.WaitFor(a.T, fmt.Sprintf("%d calls", want), programs.Bound, func() bool { n, _ := a.run.api.Counts(); return n >= want })
}

func (a *arrivals) judge() {
	a.Helper()
	calls := a.run.api.Log()
	row := checker.Judge(a.T, string(limitsyaml.Format(a.policy)), checker.Input{Calls: calls, Jitter: shortened, Epoch: a.run.api.Epoch()}).Rows[0]
	after, _ := slices.BinarySearchFunc(calls, a.struck, func(c countapi.Call, at time.Duration) int { return int(c.Arrived - at) })
	said := fmt.Sprintf("%d of %d in a second, %d in %v, %v after the trouble began; %d calls before it, and %d in %v since then",
		row.Worst, a.limit, row.Judged, time.Second-shortened, (row.WorstAt - a.struck).Round(time.Millisecond), after, len(calls)-after,
		(calls[len(calls)-1].Arrived - a.struck).Round(time.Millisecond))
	if row.Judged > a.limit {
		a.Error(said)
		return
	}
	a.Log(said)
}
