package lua

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// taskCall makes the call of decide_queued for an attempt with a ticket.
func taskCall(a asking, now int, provider string) (keys []string, args []any) {
	keys = append(slices.Clone(a.keys), provider+"@alone", provider+a.scope+"!queue")
	for _, key := range []string{"!schedule", "!heap", "!meta", "!flight", "!overdue", "!upstream", "!parked"} {
		keys = append(keys, provider+key)
	}
	args = []any{now, a.id, "0 0 0 0 " + a.scope, a.ticket, 0, ""}
	for _, r := range a.rules {
		args = append(args, r, a.cost)
	}
	return keys, args
}

// A batch admits a task, or an attempt of nobody who waits, exactly where decide_queued and decide do so on their fast paths:
// others' waiting tasks, grants, pauses and corrections make no difference, and its own leave it to those.
func TestManyLooksAtItsOwnPaths(t *testing.T) {
	t.Parallel()
	const now = 1_800_057_600_000_000
	waits := "0 0 1 0 1\n 5000000"
	scenes := map[string]struct {
		key, field, value string
		left              string // the scopes whose attempts are left to others: those with a ticket in capitals
	}{
		"nothing":                          {},
		"another node, which nobody waits": {"!meta", "n/a", "7 7 0 0 0", ""},
		"a node below which tasks wait":    {"!meta", "n/a", waits, "/A /A/X"},
		"the provider's":                   {"!meta", "n", waits, "/A /A/X /AB"},
		"a scope's own":                    {"!meta", "n/a/x", waits, "/A/X"},
		"a task in flight":                 {"!flight", "/a/x\x00:t", "1 1 1 id", "/A/X"},
		"another one in flight":            {"!flight", "/a/x\x00:u", "1 1 1 id", ""},
		"a task parked":                    {"!parked", "/a\x00:t", "", "/A"},
		"a pause":                          {"!upstream", "P/a", "anything", "/a /A /a/x /A/X"},
		"the provider's pause":             {"!upstream", "P", "anything", "/a /A /a/x /A/X /ab /AB"},
		"a rule's correction":              {"!upstream", "R/a:r", "anything", "/a /A /a/x /A/X"},
		"a rule's below":                   {"!upstream", "R/a/x:r", "anything", "/a/x /A/X"},
		"another one's":                    {"!upstream", "R/abc:r", "anything", ""},
	}
	clients := map[string]redis.UniversalClient{"redis": redistest.Client(t)}
	_, clients["miniredis"] = redistest.Miniredis(t)
	for server, rdb := range clients {
		for name, scene := range scenes {
			t.Run(server+", "+name, func(t *testing.T) {
				t.Parallel()
				ctx, provider := context.Background(), "{"+redistest.Prefix(t)+"}"
				rule := Rule('T', [4]int64{1, 1_000_000, 100})
				var all []asking
				for _, scope := range []string{"/a", "/a/x", "/ab"} {
					p := path{scope: scope}
					for at, c := range scope + "/" {
						if c == '/' && at > 0 {
							p.keys, p.rules = append(p.keys, provider+scope[:at]+":r"), append(p.rules, rule)
						}
					}
					for _, ticket := range []string{"", ":t"} {
						all = append(all, asking{path: p, id: fmt.Sprint("id", len(all)), cost: 1, ticket: ticket})
					}
				}
				for i, a := range all { // uses all rules
					keys, args := asking{path: a.path, id: fmt.Sprint("first", i), cost: 1}.alone(now, 0)
					if err := redis.NewScript(Decide.Source()).Run(ctx, rdb, keys, args...).Err(); err != nil {
						t.Fatal(err)
					}
				}
				switch scene.key {
				case "":
				case "!parked":
					rdb.ZAdd(ctx, provider+scene.key, redis.Z{Score: 1, Member: scene.field})
				default:
					rdb.HSet(ctx, provider+scene.key, scene.field, scene.value)
				}
				var left, leftAlone []string
				for _, a := range all { // without the general way, which would take what stands there
					script, keys, args := Decide.Source(), []string(nil), []any(nil)
					if a.ticket == "" {
						one := a
						one.record = provider + "@alone"
						keys, args = one.alone(now+1000, 0)
					} else {
						script = DecideQueued.Source()
						keys, args = taskCall(a, now+1000, provider)
					}
					fast, _, _ := strings.Cut(script, "-- The general way.")
					reply, err := redis.NewScript(fast+"\nreturn 'left'").Run(ctx, rdb, keys, args...).Result()
					if err != nil {
						t.Fatal(err)
					}
					if reply == "left" {
						leftAlone = append(leftAlone, named(a))
					}
				}
				keys, args := together(now+2000, "batch", provider+"@batch", all)
				reply, err := redis.NewScript(DecideMany.Source()).Run(ctx, rdb, keys, args...).Text()
				if err != nil {
					t.Fatal(err)
				}
				for i, one := range split(t, reply, all) {
					if one == nil {
						left = append(left, named(all[i]))
					}
				}
				if got := strings.Join(left, " "); got != scene.left || got != strings.Join(leftAlone, " ") {
					t.Errorf("left by the batch: %q, each by itself: %q; want %q", left, leftAlone, scene.left)
				}
			})
		}
	}
}

func named(a asking) string {
	if a.ticket != "" {
		return strings.ToUpper(a.scope)
	}
	return a.scope
}
