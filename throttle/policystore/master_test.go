package policystore

import (
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// The limits in force are those of the master, whatever the client does with other reads.
func TestLimitsComeFromTheMaster(t *testing.T) {
	t.Parallel()
	reads, _, _ := redistest.LaggingReplica(t)
	s := New(reads, Config{})
	if _, _, err := s.PublishFile(t.Context(), "worker one", policyOf(t, file), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Now(t.Context()); err != nil {
		t.Errorf("they were published: %v", err)
	}
	if list, err := s.History(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %v: one version", list, err)
	}
}
