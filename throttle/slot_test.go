package throttle

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// records returns the keys of attempts.
func records(t *testing.T, rdb redis.UniversalClient, prefix string) []string {
	t.Helper()
	keys, err := rdb.Keys(context.Background(), prefix+":*@*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func slotted(t *testing.T) (*Limiter, redis.UniversalClient, string) {
	t.Helper()
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	l, err := New(rdb, policyOf(t, Rule{Name: "r", Algorithm: TokenBucket, Limit: 1000, Per: time.Second, Burst: 1000}), Config{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return l, rdb, prefix
}

// Attempts whose ids nobody asked for leave no more records than there were ever
// attempts on their way at once; each of the others has its own.
func TestAttemptsShareSlots(t *testing.T) {
	t.Parallel()
	l, rdb, prefix := slotted(t)
	const callers = 4
	var slow atomic.Int64 // answers that may have cost a slot, on a busy machine
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range 25 {
				began := time.Now()
				if d, err := l.Allow(context.Background(), "p/x"); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
				if time.Since(began) > slowAnswer {
					slow.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if keys := records(t, rdb, prefix); len(keys) == 0 || len(keys) > callers+int(slow.Load()) {
		t.Errorf("%d callers left %d records: %q", callers, len(keys), keys)
	}
	for _, id := range []string{"mine", "#a.1"} {
		if _, err := l.Decide(context.Background(), Request{Scope: "p/x", ID: id}); err != nil {
			t.Fatal(err)
		}
		if n := rdb.Exists(context.Background(), prefix+":{p}@"+escape(id)).Val(); n != 1 {
			t.Errorf("an attempt with the id %q has no record of its own", id)
		}
	}
	for _, key := range records(t, rdb, prefix) {
		if ttl := rdb.PTTL(context.Background(), key).Val(); ttl <= 0 || ttl > 30*time.Second {
			t.Errorf("%s lasts %v", key, ttl)
		}
		if n := rdb.MemoryUsage(context.Background(), key).Val(); n > 150 {
			t.Errorf("%s takes %d bytes", key, n)
		}
	}
}

// A slot whose attempt may yet arrive is not used again.
func TestUnknownAttemptKeepsItsSlot(t *testing.T) {
	t.Parallel()
	s := newSlots()
	first := s.take()
	second := s.take()
	if first.name == second.name || !strings.HasPrefix(first.name, "@#") {
		t.Fatalf("slots %q and %q", first.name, second.name)
	}
	for what, test := range map[string]struct {
		took  time.Duration
		err   error
		again bool
	}{
		"answered":      {time.Millisecond, nil, true},
		"failed":        {time.Millisecond, errors.New("connection reset"), false},
		"slow to come":  {slowAnswer + 1, nil, false},
		"just in time":  {slowAnswer, nil, true},
		"slow, and bad": {time.Minute, context.DeadlineExceeded, false},
	} {
		one := s.take()
		one.answered(test.took, test.err)
		s.put(one)
		next := s.take()
		if again := next == one; again != test.again {
			t.Errorf("%s: the slot is used again: %t", what, again)
		}
		s.put(next)
	}
	var none *slot
	none.answered(time.Hour, nil) // an attempt with an id of its own
}

// Given back twice, also when its slot has been used meanwhile, a grant comes back
// once; sent again after that it stays denied.
func TestGiveBackOnceThroughSlots(t *testing.T) {
	t.Parallel()
	l, rdb, prefix := slotted(t)
	left := func() int64 {
		d, err := l.Peek(context.Background(), Request{Scope: "p/x"})
		if err != nil {
			t.Fatal(err)
		}
		return d.Rules[0].Remaining
	}
	stop := int64(1_800_000_000_000_000)
	l.clock = func() string { return strconv.FormatInt(stop, 10) }
	d, err := l.Allow(context.Background(), "p/x")
	if err != nil || !d.Allowed || left() != 999 {
		t.Fatalf("%+v, %v, %d left", d, err, left())
	}
	if _, err := l.Allow(context.Background(), "p/x"); err != nil || left() != 998 {
		t.Fatalf("%v, %d left", err, left())
	}
	if keys := records(t, rdb, prefix); len(keys) != 1 {
		t.Fatalf("records %q", keys)
	}
	for range 3 {
		if err := l.GiveBack(context.Background(), d.Grant); err != nil || left() != 998 && left() != 999 {
			t.Fatalf("%v, %d left", err, left())
		}
	}
	last, err := l.Allow(context.Background(), "p/x")
	if err != nil {
		t.Fatal(err)
	}
	before := left()
	if err := l.GiveBack(context.Background(), last.Grant); err != nil || left() != before+1 {
		t.Fatalf("%v, %d left", err, left())
	}
	p, err := l.plans.of("p/x")
	if err != nil {
		t.Fatal(err)
	}
	late := &attempt{limiter: l, plan: p, scope: "p/x", id: last.Grant.id, record: last.Grant.record, cost: 1}
	reply, err := l.runner.run(context.Background(), late.call())
	if err != nil || reply[0] != 0 || left() != before+1 {
		t.Errorf("an attempt that was given back and arrives late gets %v, %v; %d left", reply, err, left())
	}
}
