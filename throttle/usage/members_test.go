package usage

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/throttletest"
)

// "What a task spends with a key counts for that key too, and once in the sums above": of tasks, of a limiter with its refunds, and of
// what spends from a member itself.
func TestUsageOfMembers(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, rdb redis.UniversalClient, prefix string) {
		r := newRecorder(t, rdb, prefix, "shop")
		inOneSlot()(r)
		by := By{Queue: "q", Member: "github/@alice"}
		r.Spent("github/acme", by, 2)
		r.Settled("github/acme", by, map[string]int64{"requests": 1})
		r.Ended("github/acme", by, Ends{Failed: 1})
		r.Spent("github/acme", By{Queue: "q", Member: "github/@team/key1"}, 10)
		r.Spent("github/@alice", By{Queue: "q"}, 100)

		l, err := throttle.New(rdb, throttletest.Policy(t, `limits: {github: {pool: {members: [bob]}, scopes: {"@*": {rules: [{name: key, algorithm: fixed-window, limit: 9, per: 30d}]}}}}`),
			throttle.Config{Prefix: prefix, OnSpent: r.Record, StartTolerance: -1})
		must(t, err)
		for i := range 2 {
			d, err := l.Allow(t.Context(), "github/web")
			must(t, err)
			if i == 0 {
				must(t, l.Refund(context.Background(), d.Grant))
			}
		}
		flush(t, r)
		for scope, want := range map[string]Sum{
			"github": {114, 4}, "github/acme": {13, 2}, "github/@alice": {103, 2}, "github/@team": {10, 1}, "github/@team/key1": {10, 1},
			"github/web": {1, 1}, "github/@bob": {1, 1},
		} {
			got := read(t, rdb, prefix, scope, time.Hour)
			units := int64(0)
			for _, s := range got.Spenders {
				units += s.Units
			}
			if got.All != want || units != want.Units {
				t.Errorf("%s: %+v of which %d are listed, want %+v", scope, got.All, units, want)
			}
		}
		for scope, failed := range map[string]int64{"github": 1, "github/acme": 1, "github/@alice": 1, "github/@team": 0} {
			if got := read(t, rdb, prefix, scope, time.Hour).Ends.Failed; got != failed {
				t.Errorf("%d runs of %s failed", got, scope)
			}
		}
	})
}
