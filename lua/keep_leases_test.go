package lua

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// keep_leases renews the leases that are still the caller's, and that nobody has told from others, and leaves all others
// as they are.
func TestKeepLeases(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"redis": redistest.Client(t), "cluster": redistest.Cluster(t), "miniredis": mini} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for what, c := range map[string]struct {
				was, lease string // "" is not there
				want       float64
			}{
				"its own":                {"1800057630.123457", "1800057660.123457", 1800057660.123457},
				"another's":              {"1800057630.123457", "1800057660.123458", 1800057630.123457},
				"bare asynq's":           {"1800057630", "1800057660.123457", 1800057660.123457},
				"its own is not known":   {"1800057630.123457", "1800057660", 1800057660.123457},
				"bare asynq's, by such":  {"1800057630", "1800057660", 1800057660},
				"it is not active":       {"", "1800057660.123457", 0},
				"a fraction near the 1":  {"1800057630.999999", "1800057660.999999", 1800057660.999999},
				"the smallest there are": {"1800057630.000001", "1800057660.000002", 1800057630.000001},
			} {
				q := taskQueue{t, rdb, "asynq:{" + redistest.Prefix(t) + " " + what + "}:"}
				if c.was != "" {
					q.do("ZADD", q.prefix+"lease", c.was, "a")
				}
				q.do("ZADD", q.prefix+"lease", "1800057630.5", "beside it")
				kept, err := redis.NewScript(KeepLeases.Source()).Run(t.Context(), rdb, []string{q.prefix + "lease"}, c.lease, "a").Int64Slice()
				if err != nil || len(kept) != 1 || kept[0] != map[bool]int64{true: 1}[c.want >= 1800057660] {
					t.Errorf("%s: %v, %v", what, kept, err)
				}
				if got := rdb.ZScore(t.Context(), q.prefix+"lease", "a").Val(); got != c.want {
					t.Errorf("%s: the lease is %.6f, want %.6f", what, got, c.want)
				}
			}
		})
	}
}
