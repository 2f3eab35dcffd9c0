package checker

// TB is what Judge needs of a test or a benchmark.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// Judge checks a test's calls against a limits file. It ends the test if they cannot be judged.
func Judge(t TB, limits string, in Input) *Report {
	t.Helper()
	parsed, err := ParseLimits([]byte(limits))
	if err != nil {
		t.Fatal(err)
	}
	in.Limits = parsed
	report, err := Check(in)
	if err != nil {
		t.Fatal(err)
	}
	return report
}
