package worker

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/dispatch"
)

// "A slow limit gets a wider spread", and nothing is granted that is more than 250 ms ahead: of a slow limit
// each look grants several, and of one that is quick no more than before.
func TestSlowLimitsAreGrantedSeveralAtOnce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rate        int64
		least, most float64 // tasks a look
		ahead       time.Duration
	}{
		{10, 2, 3, 250 * time.Millisecond},
		{20, 3, 5, 250 * time.Millisecond},
		{100, 5, 12, 150 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(test.rate), func(t *testing.T) {
			t.Parallel()
			inFakeTime(t, steady(test.rate), func(s *system) {
				const n = 60
				var looks, granted atomic.Int64
				var ahead atomic.Int64
				s.throttle.dispatcher.Intercept(func(dispatch dispatch.Func) dispatch.Func {
					return func(ctx context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
						got, err := dispatch(ctx, req)
						for _, g := range got.Granted {
							ahead.Store(max(ahead.Load(), int64(g.Wait)))
						}
						if len(got.Granted) > 0 && granted.Add(int64(len(got.Granted))) > 10 { // it is known how many there are
							looks.Add(1)
						}
						return got, err
					}
				})
				s.planned(jobs(n, "p/a")...)
				s.serve(asynq.Config{Concurrency: 10}, nil)
				s.finish(n)
				each := float64(granted.Load()-10) / float64(looks.Load())
				if each < test.least || each > test.most {
					s.t.Errorf("%.1f tasks a look", each)
				}
				if got := time.Duration(ahead.Load()); got > test.ahead {
					s.t.Errorf("a start is %v ahead", got)
				}
			})
		})
	}
}

// "Half of the slots must be free": slow limits take no room from a quick one beside them.
func TestSlowLimitsLeaveRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slow, seconds = 12, 3
		nodes := map[string]policy.ScopeConfig{"quick": {Rules: steady(300)}}
		for i := range slow {
			nodes[fmt.Sprint("slow", i)] = policy.ScopeConfig{Rules: steady(10)}
		}
		policy, err := policy.New(policy.UnmatchedDeny, nodes)
		must(t, err)
		_, rdb := redistest.Miniredis(t)
		t.Cleanup(synctest.Wait)
		s := newSystemOn(t, rdb, policy, MiddlewareConfig{})
		for i := range slow {
			s.planned(jobs(seconds*20, fmt.Sprintf("slow%d/a", i))...)
		}
		s.planned(jobs(seconds*300, "quick/a")...)
		s.serve(asynq.Config{Concurrency: 10}, func(context.Context, *asynq.Task) error {
			<-time.After(10 * time.Millisecond)
			return nil
		})
		began := time.Now()
		for left := seconds * 300; left > 0; {
			if id := <-s.ended; strings.HasPrefix(id, "quick") {
				left--
			}
		}
		// The slots are taken for 4.2 of each 10 ms; 3.7 s without wider spreads, 7 with those that ask nobody for room.
		if took := time.Since(began); took > seconds*time.Second*3/2 {
			t.Errorf("the quick one's tasks took %v, and %v would do", took, seconds*time.Second)
		}
	})
}
