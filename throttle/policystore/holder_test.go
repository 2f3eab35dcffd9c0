package policystore

import (
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

var newerFile = strings.Replace(file, "limit: 20,", "limit: 30,", 1)

// Whether nobody has the newer file is seen only by one who looks all the time: what happened while Redis
// did not answer, or while the process stood still, happened to the others too.
func TestVacancyIsSeenWithoutGaps(t *testing.T) {
	inBubble(t, func(t *testing.T, m *miniredis.Miniredis, s *Store) {
		ctx, older, newer := t.Context(), policyOf(t, file), policyOf(t, newerFile)
		h, other := NewHolder(s, "worker one"), NewHolder(s, "worker two")
		renews := func(want Published) {
			t.Helper()
			became, _, again, err := h.Renew(ctx, older)
			if became != want || err != nil || again <= 0 || again > 15*time.Second {
				t.Errorf("%v, again in %s, %v; want %v", became, again, err, want)
			}
		}
		renews(FileStands)
		if became, _, err := other.Publish(ctx, newer, nil); became != FileNew || err != nil {
			t.Errorf("%v, %v", became, err)
		}
		renews(FileSuperseded)
		must(t, other.Release(ctx))
		renews(FileSuperseded)
		for range 3 {
			<-time.After(15 * time.Second)
			m.SetError("LOADING")
			if _, _, _, err := h.Renew(ctx, older); err == nil {
				t.Error("there is no Redis")
			}
			m.SetError("")
			<-time.After(15 * time.Second)
			renews(FileSuperseded)
		}
		for range 3 {
			<-time.After(time.Hour)
			renews(FileSuperseded)
		}
		<-time.After(15 * time.Second)
		renews(FileSuperseded)
		<-time.After(15 * time.Second)
		renews(FileAgain)
		<-time.After(15 * time.Second)
		renews(FileStands)
		v, err := s.Current(ctx)
		if err != nil || v.Number != 3 || !v.HasFile(older) || v.HasFile(newer) || v.By != "worker one" {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

// On a real server: several processes with the older file see at once that nobody has the newer one, and
// one of them publishes it.
func TestHoldersTakeOverOnce(t *testing.T) {
	t.Parallel()
	s, rdb := withFile(t)
	ctx, older := t.Context(), policyOf(t, file)
	newer := NewHolder(s, "worker one")
	if _, _, err := newer.Publish(ctx, policyOf(t, newerFile), nil); err != nil {
		t.Fatal(err)
	}
	if became, _, err := NewHolder(s, "worker two").Publish(ctx, older, nil); became != FileSuperseded || err != nil {
		t.Errorf("%v, %v", became, err)
	}
	if ttl := rdb.PTTL(ctx, s.filesKey()).Val(); ttl < time.Hour || ttl > 2*time.Hour {
		t.Errorf("the leases stay for %s", ttl)
	}
	must(t, newer.Release(ctx))
	results := make(chan Published, 5)
	for range cap(results) {
		go func() {
			became, _, err := NewHolder(s, "worker").Publish(ctx, older, nil)
			if err != nil {
				t.Error(err)
			}
			results <- became
		}()
	}
	again := 0
	for range cap(results) {
		switch became := <-results; became {
		case FileAgain:
			again++
		case FileStands:
		default:
			t.Error(became)
		}
	}
	if v, err := s.Current(ctx); again != 1 || err != nil || v.Number != 3 || !v.HasFile(older) {
		t.Errorf("%d times, %+v, %v", again, v, err)
	}
}
