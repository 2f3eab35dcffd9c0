package main

import (
	"bytes"
	"os"
	"testing"
)

func TestTheFileIsWhatGenWrites(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("../tasks.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := write(&got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("tasks.ndjson is not what gen writes; run go generate ./examples/quickstart")
	}
}
