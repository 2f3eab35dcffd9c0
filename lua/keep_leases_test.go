package lua

import "testing"

// keep_leases renews the leases that are still the caller's, and that nobody has told from others, and leaves all others
// as they are.
func TestKeepLeases(t *testing.T) {
	onQueues(t, KeepLeases, []string{"zadd", "zscore"}, func(t *testing.T, q taskQueue) {
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
			lease := q.prefix + "lease of " + what
			if c.was != "" {
				q.do("ZADD", lease, c.was, "a")
			}
			q.do("ZADD", lease, "1800057630.5", "beside it")
			kept, err := q.run([]string{lease}, c.lease, "a").Int64Slice()
			if err != nil || len(kept) != 1 || kept[0] != map[bool]int64{true: 1}[c.want >= 1800057660] {
				t.Errorf("%s: %v, %v", what, kept, err)
			}
			if got := q.rdb.ZScore(t.Context(), lease, "a").Val(); got != c.want {
				t.Errorf("%s: the lease is %.6f, want %.6f", what, got, c.want)
			}
		}
	})
}
