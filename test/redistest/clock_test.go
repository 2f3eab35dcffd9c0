package redistest

import (
	"strconv"
	"testing"
	"time"
)

// A script that has "" for the clock takes the test's, alone and in a pipeline; one that has not is
// left alone, and TIME shows it too.
func TestClock(t *testing.T) {
	t.Parallel()
	ctx, rdb, clock := t.Context(), Client(t), NewClock(time.UnixMicro(1_700_000_000_000_001))
	rdb.AddHook(clock)
	const script = "return ARGV[1]"
	check := func(got string, err error) {
		t.Helper()
		if want := strconv.FormatInt(clock.Now().UnixMicro(), 10); err != nil || got != want {
			t.Errorf("a script was told %q, %v; the clock shows %s", got, err, want)
		}
	}
	check(rdb.Eval(ctx, script, []string{"a", "b"}, "", "x").Text())
	clock.Advance(time.Microsecond)
	pipe := rdb.Pipeline()
	first, second := pipe.Eval(ctx, script, nil, ""), pipe.Eval(ctx, script, []string{"a"}, "other")
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	check(first.Text())
	if got, err := second.Text(); err != nil || got != "other" {
		t.Errorf("an argument that is no clock was made %q, %v", got, err)
	}
	if now, err := rdb.Time(ctx).Result(); err != nil || !now.Equal(clock.Now()) {
		t.Errorf("TIME shows %s, %v; the clock %s", now, err, clock.Now())
	}
}
