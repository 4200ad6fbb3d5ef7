module saga

go 1.22
