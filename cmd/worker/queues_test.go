package main

import (
	"maps"
	"strings"
	"testing"
)

func TestParseQueues(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]map[string]int{
		"default=1":                {"default": 1},
		"critical=6,default=3,l=1": {"critical": 6, "default": 3, "l": 1},
		" a=1 , b=1000 ":           {"a": 1, "b": 1000},
		"A-z_0.9=2":                {"A-z_0.9": 2},
	} {
		got, err := parseQueues(in)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: got %v, %v, want %v", in, got, err, want)
		}
	}
	for in, want := range map[string][]string{
		"":                              {"an empty entry"},
		"a=1,":                          {"an empty entry"},
		"a":                             {`"a" has no weight`},
		"=1":                            {`"" is not a queue name`},
		"a b=1":                         {`"a b" is not a queue name`},
		"ä=1":                           {`"ä" is not a queue name`},
		"{a}=1":                         {`"{a}" is not a queue name`},
		"a/b=1":                         {`"a/b" is not a queue name`},
		"a:b=1":                         {`"a:b" is not a queue name`},
		"a=0":                           {`the weight of "a" is "0"`},
		"a=-1":                          {`the weight of "a" is "-1"`},
		"a=1.5":                         {`the weight of "a" is "1.5"`},
		"a=":                            {`the weight of "a" is ""`},
		"a=1001":                        {`the weight of "a" is "1001", not a whole number from 1 to 1000`},
		"a=1=2":                         {`the weight of "a" is "1=2"`},
		"a=1,b=1,a=2":                   {`names "a" twice`},
		"a,b=0,c=1,c=1,d d=1":           {`"a" has no weight`, `the weight of "b"`, `names "c" twice`, `"d d" is not a queue name`},
		strings.Repeat("q", 129) + "=1": {"1 to 128 letters"},
	} {
		_, err := parseQueues(in)
		if err == nil {
			t.Errorf("%q: no error", in)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) || !strings.Contains(err.Error(), "try: -queues") {
				t.Errorf("%q: got %v, want %q", in, err, w)
			}
		}
	}
}
