package page

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counted is a topic that counts its readings.
func counted(key string, cost int, n *atomic.Int64, away *atomic.Bool) topic {
	return topic{key: key, cost: fixed(cost), load: func(context.Context, any) (any, error) {
		if away.Load() {
			return nil, errors.New("gone")
		}
		return n.Add(1), nil
	}}
}

// "100 viewers cost Redis what one does", and none when nobody looks.
func TestHubReadsOnceForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHub(slog.New(slog.DiscardHandler), time.Now)
		var n atomic.Int64
		var away atomic.Bool
		one := counted("a", 5, &n, &away)
		var stops []func()
		for range 100 {
			_, stop := h.watch(one)
			stops = append(stops, stop)
			h.get(t.Context(), one)
		}
		if n := n.Load(); n != 1 {
			t.Errorf("100 viewers that came at once: %d readings", n)
		}
		time.Sleep(10*time.Second + time.Millisecond) //nolint:forbidigo // in a bubble
		synctest.Wait()
		if n := n.Load(); n < 10 || n > 12 {
			t.Errorf("ten seconds later: %d readings", n)
		}
		for _, stop := range stops {
			stop()
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble
		synctest.Wait()
		at := n.Load()
		time.Sleep(time.Hour) //nolint:forbidigo // in a bubble
		synctest.Wait()
		if n := n.Load(); n != at {
			t.Errorf("%d readings while nobody looked", n-at)
		}
		away.Store(true)
		if st := h.get(t.Context(), one); st.err == nil || st.data != at {
			t.Errorf("while Redis is away: %+v, want what was read last, %d", st, at)
		}
	})
}

// A snapshot sends at most 50 commands, whatever the number of topics; each has its turn.
func TestHubBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHub(slog.New(slog.DiscardHandler), time.Now)
		var counts [10]atomic.Int64
		var away atomic.Bool
		var stops []func()
		for i := range counts {
			_, stop := h.watch(counted(string(rune('a'+i)), 20, &counts[i], &away))
			stops = append(stops, stop)
		}
		time.Sleep(10*time.Second + time.Millisecond) //nolint:forbidigo // in a bubble
		synctest.Wait()
		for _, stop := range stops {
			stop()
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble
		synctest.Wait()
		sum := int64(0)
		for i := range counts {
			n := counts[i].Load()
			sum += n
			if n == 0 {
				t.Errorf("topic %d was never read", i)
			}
		}
		if sum > 10*snapshotCommands/20 {
			t.Errorf("%d readings of 20 commands in ten seconds", sum)
		}
	})
}
