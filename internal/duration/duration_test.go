package duration

import (
	"math"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "1m": time.Minute, "24h": 24 * time.Hour, "30d": 720 * time.Hour, // of interfaces.md
		"0s": 0, "00d": 0, "1.5s": 1500 * time.Millisecond, ".5s": 500 * time.Millisecond, "1.s": time.Second,
		"1h2m3s": 3723 * time.Second, "1us": 1000, "1µs": 1000, "1μs": 1000, "7ns": 7, "+1s": time.Second, "-1m": -time.Minute, "-2d": -2 * day,
		"0.1h": 6 * time.Minute, "500ns500ns": 1000,
		// Where a time.Duration ends.
		"1000000d": math.MaxInt64, "-1000000d": math.MinInt64, "99999999999999999999h": math.MaxInt64, "-1s99999999999999999999h": math.MinInt64, "99999999999999999999d": math.MaxInt64,
	} {
		if got, ok := Parse(text); !ok || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "1", "s", "d", "1.5d", "1d12h", "1h1d", "1e3s", "1 s", " 1s", "1S", "1w", "--1s", ".s", "1..5s", "1_000s", "0x1s", "∞"} {
		if got, ok := Parse(text); ok {
			t.Errorf("%q: got %v, want none", text, got)
		}
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0s": 0, "1us": time.Microsecond, "1.5ms": 1500 * time.Microsecond, "1s": time.Second, "20s": 20 * time.Second,
		"1m": time.Minute, "1m20s": 80 * time.Second, "10m": 10 * time.Minute, "1h": time.Hour, "1h10m": 70 * time.Minute, "1h0m1s": time.Hour + time.Second,
		"24h": day, "36h": 36 * time.Hour, "2d": 2 * day, "366d": 366 * day, "-1h": -time.Hour,
	} {
		if got := Format(d); got != want {
			t.Errorf("%d: got %s, want %s", d, got, want)
		}
	}
}

// "Parse reads back" what Format writes, and reads what time.ParseDuration does.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"1s", "1.5h", "-1us", "30d", "1h0m0.000001s", "+.5ms", "1e3", "9223372036854775807ns"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := Parse(text)
		if want, err := time.ParseDuration(text); err == nil && (!ok || got != want) {
			t.Fatalf("%q: got %d, %v, want %d", text, got, ok, want)
		}
		if again, read := Parse(Format(got)); ok && (!read || again != got) {
			t.Fatalf("%q: %s reads back as %d, want %d", text, Format(got), again, got)
		}
	})
}
