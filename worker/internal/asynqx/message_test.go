package asynqx

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// What is no message of asynq's goes on as it is, and so does every other script.
func TestCleanMessage(t *testing.T) {
	t.Parallel()
	field := func(b []byte, number protowire.Number, text string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), text)
	}
	failed := func(b []byte, text string) []byte {
		b = protowire.AppendVarint(protowire.AppendTag(b, fieldLastFailedAt, protowire.VarintType), 7)
		return field(b, fieldErrorMsg, text) // in no order
	}
	plain := field(nil, 1, "work")
	keys := []string{"asynq:{q}:active", "asynq:{q}:lease", "asynq:{q}:completed"}
	for _, c := range []struct {
		keys     []string
		in, want []byte
	}{
		{keys, failed(plain, WaitingText+": p/a"), plain},
		{keys, failed(plain, "boom"), failed(plain, "boom")},
		{keys, failed(plain, "boom: "+WaitingText), failed(plain, "boom: "+WaitingText)},
		{keys, []byte(WaitingText + "\xff\xff"), []byte(WaitingText + "\xff\xff")},
		{[]string{keys[0], keys[1], "asynq:{q}:retry"}, failed(nil, WaitingText), failed(nil, WaitingText)},
	} {
		args := []any{"id", 1, 2, c.in, 3}
		got := withoutOurText(c.keys, args)
		if clean, _ := got[messageArg].([]byte); !bytes.Equal(clean, c.want) || len(got) != len(args) {
			t.Errorf("%q became %q, want %q", c.in, clean, c.want)
		}
		if kept, _ := args[messageArg].([]byte); !bytes.Equal(kept, c.in) {
			t.Errorf("the caller's %q became %q", c.in, kept)
		}
	}
}
