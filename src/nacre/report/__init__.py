"""What runs show, for people: tables, charts, pictures and one page that holds them all."""
