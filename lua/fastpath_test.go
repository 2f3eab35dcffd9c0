package lua

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// Rules that were used lately and admit their cost are decided on the fast path
// alone; what it does not know, a calendar for one, is left to the general one, with
// nothing written.
func TestExpressWay(t *testing.T) {
	t.Parallel()
	const start = 1_800_057_600_000_000
	fixed := Rule('S', [4]int64{100, 0, 60_000_000, 5000})
	onUse := Rule('S', [4]int64{100, 60_005_000, 0, 10_000})
	rules := map[string]string{
		"T": Rule('T', [4]int64{1, 1_000_000, 100}),
		"S": Rule('S', [4]int64{100, 60_000_000, 1000}),
		"C": Rule('C', [4]int64{100, 60_000_000}),
		"K": Rule('K', [4]int64{100, start - 1, start + 60_000_000, start + 120_000_000}, 5000, 0, 0, start-60_000_000, start+180_000_000),
	}
	clients := map[string]redis.UniversalClient{"redis": redistest.Client(t)}
	_, clients["miniredis"] = redistest.Miniredis(t)
	for name, rdb := range clients {
		for _, kinds := range subsets() {
			t.Run(name+" "+kinds, func(t *testing.T) {
				t.Parallel()
				prefix := "{" + redistest.Prefix(t) + "}"
				var keys []string
				for _, kind := range kinds {
					keys = append(keys, prefix+string(kind))
				}
				if strings.Contains(kinds, "S") {
					keys = append(keys, prefix+"fixed", prefix+"on use")
				}
				whole := Decide.For(kinds).Source()
				fastPath, _, found := strings.Cut(whole, "-- The general way.")
				if !found {
					t.Fatal("decide.lua does not say where the general way begins")
				}
				decide := func(source, id string, at, ahead int) any {
					args := []any{at, id, ahead}
					for _, kind := range kinds {
						args = append(args, rules[string(kind)], 2)
					}
					if strings.Contains(kinds, "S") {
						args = append(args, fixed, 2, onUse, 2)
					}
					reply, err := redis.NewScript(source).Run(context.Background(), rdb, append(keys, prefix+"@"+id, prefix+"!upstream"), args...).Result()
					if err != nil {
						t.Fatal(err)
					}
					return reply
				}
				took := func(id string, at int) bool {
					list, ok := decide(fastPath+"\nreturn 'left'", id, at, 0).([]any)
					return ok && len(list) == 1+3*len(keys)
				}
				if kinds != "C" && took("new", start) {
					t.Error("rules that were never used are decided on the fast path")
				}
				decide(whole, "first", start, 0)
				if strings.Contains(kinds, "K") {
					if took("second", start) {
						t.Error("a calendar is decided on the fast path")
					}
					return
				}
				for i, id := range []string{"second", "third", "fourth"} {
					if !took(id, start+1000*i) {
						t.Errorf("the %s attempt is left", id)
					}
				}
				if took("third", start+5000) {
					t.Error("an attempt that was sent before is decided on the fast path")
				}
				if again := decide(whole, "third", start+5000, 0).([]any); again[1] != int64(1) {
					t.Errorf("sent again, the third attempt gets %v", again)
				}
				if kinds != "C" && took("late", start+120_000_000) {
					t.Error("keys that are about to expire are written without a new TTL")
				}
			})
		}
	}
}
